// The charts of the report. Axes, cursors and zoom are uPlot's; the slices are drawn here.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const known = new Map();
  function css(name) {
    if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return known.get(name);
  }
  const PRINTED = 680;
  const units = [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]];
  const unitOf = (seconds) => units.find(([factor]) => seconds * factor >= 1) || units[3];
  const number = (value) => Number(value.toPrecision(4)).toString();
  const seconds = (value) => {
    const [factor, unit] = unitOf(value);
    return `${number(value * factor)} ${unit}`;
  };
  const charts = [];
  let printing = false;

  // A fill of the page: its colour in the present theme, hatched with ink.
  const fills = new Map();
  function fill(name) {
    if (fills.has(name)) return fills.get(name);
    const style = data.styles[name];
    if (!style) return css("--soft");
    const ratio = window.devicePixelRatio || 1;
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(8 * ratio);
    const ctx = tile.getContext("2d");
    ctx.scale(tile.width / 8, tile.height / 8);
    ctx.fillStyle = css(`--f${style[0]}`);
    ctx.fillRect(0, 0, 8, 8);
    ctx.strokeStyle = css("--ink");
    ctx.lineWidth = 0.7;
    if (style[1]) ctx.stroke(new Path2D(style[1]));
    const pattern = ctx.createPattern(tile, "repeat");
    fills.set(name, pattern);
    return pattern;
  }

  const widthOf = (box) => (printing ? PRINTED : Math.max(240, box.clientWidth));
  const font = "12px system-ui, sans-serif";
  const plainAxis = () => ({
    stroke: () => css("--ink"), font, grid: { stroke: () => css("--line"), width: 1 },
    ticks: { stroke: () => css("--line"), width: 1, size: 4 },
  });
  const GUTTER = 104;
  function gutter(names) { // wide enough for the longest name
    const ctx = document.createElement("canvas").getContext("2d");
    ctx.font = font;
    return Math.max(GUTTER, ...names.map((name) => Math.ceil(ctx.measureText(name).width) + 14));
  }
  function timeAxis(length) {
    const [factor, unit] = unitOf(length);
    return { ...plainAxis(), values: (u, ticks) => ticks.map((t) => number(t * factor)),
      label: `time [${unit}]`, labelSize: 18, labelFont: font, size: 32, space: 60 };
  }
  const xScale = (length) => ({ time: false, range: (u, low, high) => [Math.max(0, low), Math.min(length, high)] });

  // Charts of one group zoom together: with the wheel, by dragging, and back by a double click.
  function zoom(group, low, high, length) {
    const least = length * 1e-7;
    const span = Math.min(length, Math.max(least, high - low));
    const start = Math.min(Math.max(0, low), length - span);
    for (const chart of charts.filter((each) => each.group === group))
      chart.plot.setScale("x", { min: start, max: start + span });
  }
  function wheel(chart, length) {
    const { plot, group } = chart;
    plot.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const at = plot.posToVal(event.offsetX, "x");
      const factor = event.deltaY < 0 ? 0.7 : 1 / 0.7;
      const { min, max } = plot.scales.x;
      zoom(group, at - (at - min) * factor, at + (max - at) * factor, length);
    }, { passive: false });
    plot.over.addEventListener("dblclick", () => zoom(group, 0, length, length));
  }
  function add(box, group, options, values, length) {
    const zoomed = (plot) => {
      const { left, width } = plot.select;
      if (width > 2) zoom(group, plot.posToVal(left, "x"), plot.posToVal(left + width, "x"), length);
      plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    };
    const plot = new uPlot({
      width: widthOf(box), legend: { show: false }, padding: [10, 18, 0, 0], ...options,
      hooks: { ...options.hooks, setSelect: [zoomed] },
      cursor: { drag: { x: true, y: false, setScale: false }, y: false, ...options.cursor },
    }, values, box);
    const chart = { box, group, plot, length };
    charts.push(chart);
    wheel(chart, length);
    return chart;
  }

  // The timeline: one row for the core and for each stream or link.
  const ROW = 34, GAP = 8;
  let timeline = null;
  const which = find("which");
  data.timelines.forEach((each, at) => which.add(new Option(`${each.title}, ${seconds(each.length)}`, at)));

  function describe(each) {
    const [start, length, label, name, phase, count, , share] = each;
    const kind = share === undefined ? `${label}${phase ? `, ${phase}` : ""}`
      : `${label} uses ${number(100 * share)} % of it`;
    const times = count > 1 ? `; ${count.toLocaleString("en")} times in the step` : "";
    return `${data.names[name]}: ${kind}; ${seconds(length)} from ${seconds(start)}${times}`;
  }
  function sliceAt(plot, shown, left, top) {
    const row = shown.rows[Math.floor(plot.posToVal(top, "y"))];
    if (!row) return null;
    const time = plot.posToVal(left, "x");
    const height = 1 - (plot.posToVal(top, "y") % 1);
    const inside = row.slices.filter((each) => each[0] <= time && time < each[0] + each[1]);
    return inside.find((each) => each[7] === undefined || height <= each[6] + each[7])
      || inside[inside.length - 1] || null;
  }
  function drawSlices(plot, shown) {
    const { ctx, bbox } = plot, ratio = uPlot.pxRatio;
    const { min, max } = plot.scales.x;
    const pixels = bbox.width / (max - min);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    shown.rows.forEach((row, at) => {
      const top = plot.valToPos(at, "y", true) + GAP / 2 * ratio;
      const high = plot.valToPos(at + 1, "y", true) - GAP / 2 * ratio - top;
      ctx.strokeStyle = css("--line");
      ctx.strokeRect(bbox.left, top, bbox.width, high);
      for (const each of row.slices) {
        const [start, length, label, name, , , base, share] = each;
        if (start + length < min || start > max) continue;
        const left = bbox.left + (start - min) * pixels, wide = Math.max(0.5, length * pixels);
        const low = share === undefined ? top : top + high * (1 - base - share);
        const tall = share === undefined ? high : high * share;
        ctx.fillStyle = wide < 4 * ratio && data.styles[label] ? css(`--f${data.styles[label][0]}`) : fill(label);
        ctx.fillRect(left, low, wide, tall);
        if (wide > 3 * ratio && share === undefined) {
          ctx.lineWidth = 0.5 * ratio;
          ctx.strokeStyle = css("--ink");
          ctx.strokeRect(left, low, wide, tall);
        }
        if (share === undefined && wide > 30 * ratio) nameSlice(ctx, data.names[name], left, wide, low + tall / 2, ratio);
      }
    });
    ctx.restore();
  }
  function nameSlice(ctx, name, left, wide, middle, ratio) {
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    const seen = Math.max(left, 0);
    const short = name.replace(/^(all|reduce|collective)-[a-z]+\//, "");
    const size = ctx.measureText(short).width;
    if (size > wide - 6 * ratio) return;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.lineWidth = 3 * ratio;
    ctx.lineJoin = "round";
    ctx.strokeStyle = "#fff";
    ctx.fillStyle = "#000";
    ctx.strokeText(short, seen + wide / 2, middle);
    ctx.fillText(short, seen + wide / 2, middle);
  }
  function showTimeline() {
    const box = find("chart-timeline"), shown = data.timelines[which.value || 0];
    if (timeline) {
      charts.splice(charts.indexOf(timeline), 1);
      timeline.plot.destroy();
      box.replaceChildren();
    }
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    const count = shown.rows.length, length = shown.length;
    const rowNames = shown.rows.map((row) => row.mean === undefined ? row.name
      : `${row.name} ${(100 * row.mean).toFixed(1)} %`);
    timeline = add(box, "timeline", {
      height: count * ROW + 58,
      scales: { x: xScale(length), y: { range: [0, count], dir: -1 } },
      series: [{}, { scale: "y", paths: () => null, points: { show: false } }],
      axes: [timeAxis(length), {
        ...plainAxis(), grid: { show: false }, ticks: { show: false }, size: gutter(rowNames),
        splits: () => rowNames.map((_, at) => at + 0.5), values: () => rowNames,
      }],
      hooks: {
        draw: [(plot) => drawSlices(plot, shown)],
        setCursor: [(plot) => {
          const { left, top } = plot.cursor;
          const each = left >= 0 ? sliceAt(plot, shown, left, top) : null;
          tip.hidden = !each;
          if (!each) return;
          tip.textContent = describe(each);
          const to = plot.over.offsetLeft + left + 12;
          tip.style.left = `${Math.max(0, Math.min(to, box.clientWidth - tip.offsetWidth))}px`;
          tip.style.top = `${top + 22}px`;
        }],
      },
      cursor: { points: { show: false } },
    }, [[0, length], [0, 0]], length);
    box.append(tip);
    timeline.plot.over.addEventListener("click", (event) => {
      const each = sliceAt(timeline.plot, shown, event.offsetX, event.offsetY);
      if (each) find("picked").textContent = describe(each);
    });
  }
  which.addEventListener("change", showTimeline);
  const step = (factor) => {
    const { min, max } = timeline.plot.scales.x, middle = (min + max) / 2, half = (max - min) / 2 * factor;
    zoom("timeline", middle - half, middle + half, timeline.length);
  };
  find("in").addEventListener("click", () => step(0.5));
  find("out").addEventListener("click", () => step(2));
  find("all").addEventListener("click", () => zoom("timeline", 0, timeline.length, timeline.length));

  // Shares and bytes over the step: each value holds until the next edge.
  const held = (values) => [...values, values[values.length - 1]];
  const stepped = uPlot.paths.stepped({ align: 1 });
  function showUse() {
    const box = find("chart-use"), { edges, rows } = data.use;
    rows.forEach((row, at) => {
      const last = at === rows.length - 1;
      add(box, "step", {
        height: last ? 110 : 64,
        scales: { x: xScale(data.step_s), y: { range: [0, 1] } },
        series: [{}, { stroke: () => css("--accent"), fill: () => `${css("--accent")}44`, width: 1, paths: stepped, points: { show: false } }],
        axes: [last ? timeAxis(data.step_s) : { ...plainAxis(), show: false }, {
          ...plainAxis(), size: GUTTER, splits: () => [0, 0.5, 1], space: 10, grid: { stroke: () => css("--line"), width: 1 },
          values: () => ["", `${row.name} ${(100 * row.mean).toFixed(1)} %`, "100 %"],
        }],
        cursor: { points: { show: false } },
      }, [edges, held(row.values)], data.step_s);
    });
  }
  function showMemory() {
    const box = find("chart-memory"), { rows, limit, peak } = data.memory, edges = data.use.edges;
    const size = peak >= 2 ** 30 ? 2 ** 30 : 2 ** 20;
    const sums = [];
    let so_far = edges.map(() => 0);
    for (const row of rows) {
      so_far = held(row.values).map((value, at) => so_far[at] + value / size);
      sums.push(so_far);
    }
    const top = limit > 8 * peak ? peak : Math.max(limit, peak);
    add(box, "step", {
      height: 300,
      scales: { x: xScale(data.step_s), y: { range: [0, 1.08 * top / size] } },
      series: [{}, ...rows.map((row) => ({
        fill: () => fill(row.style), stroke: () => css("--ink"), width: 0.5, paths: stepped, points: { show: false },
      })).reverse(), { stroke: () => css("--bad"), width: 2, dash: [8, 5], points: { show: false } }],
      axes: [timeAxis(data.step_s), { ...plainAxis(), size: 56, label: `HBM [${size === 2 ** 30 ? "GiB" : "MiB"}]`, labelSize: 18, labelFont: font }],
      cursor: { points: { show: false } },
    }, [edges, ...sums.reverse(), edges.map(() => limit / size)], data.step_s);
  }

  // Parts of the bar open what is in them.
  find("bar").addEventListener("click", (event) => {
    const part = event.target.closest("[data-part]");
    if (!part) return;
    find("view-kind").checked = true;
    const opened = find(`part-${part.dataset.part}`);
    if (!opened) return;
    opened.open = true;
    opened.scrollIntoView({ block: "nearest" });
  });

  function redraw() {
    fills.clear();
    known.clear();
    for (const { box, plot } of charts) {
      plot.setSize({ width: widthOf(box), height: plot.height });
      plot.redraw(false, true);
    }
  }
  showTimeline();
  showUse();
  showMemory();
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 80); });
  const print = (now) => () => { printing = now; redraw(); };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", (event) => print(event.matches)());
  window.tpusim = { get range() { const { min, max } = timeline.plot.scales.x; return [min, max]; } };
})();
