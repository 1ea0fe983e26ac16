"""Traces in files: each format, the parts that are kept, and what is refused."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim import TpusimError
from tpusim.traffic import Traffic

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0319601,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-12 00:00:00.001163+00:00,1000,20
2024-05-12 00:00:00+00:00,2000,30
""".replace("00:00:00+", "00:00:01+")
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BURST_GPT_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.5,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9,2,ChatGPT,,,,Conversation log
19440161.0,,2,ChatGPT,36,29,65,API log
"""
BLIS = """arrival_time,request_id,model,prefill_tokens,decode_tokens
0.25,req_0,llama,"[1,2, 3,4,5]","[101]"
0.5,req_1,llama,"[7]","[201,202]"
"""
BLIS_COUNTS = """arrival_time,request_id,model,prefill_tokens,decode_tokens
0.25,req_0,llama,5,1
0.5,req_1,llama,1,2
"""
SPLITWISE = """\
request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,0.1,1,512,7
1,2,0,0.35,1,128,8
"""
PLAIN = """
 arrival_s , prompt,output,note
1.5,10,1,"one, two"

1.5,20,2,
4,30,3.0,x
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1300, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3001, "input_length": 512, "output_length": 490, "hash_ids": [0]}

{"timestamp": 3001, "input_length": 700, "output_length": 3, "hash_ids": []}
"""
SHARE_GPT = json.dumps(
    [
        {
            "id": "a",
            "conversations": [
                {"from": "human", "value": "Hi", "tokens": 12},
                {"from": "gpt", "value": "Hello", "tokens": 34},
                {"from": "human", "value": "not read", "tokens": 9},
            ],
        },
        {"id": "b", "conversations": [{"from": "gpt", "value": "alone"}]},
        {"conversations": [{"tokens": 5}, {"tokens": 6}]},
    ]
)

S = 10**12


def read(folder: Path, text: str | bytes, **given: Any) -> Traffic:
    path = folder / "t.log"  # the name says nothing
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Traffic.read(path, **given)


@pytest.mark.parametrize(
    ("text", "arrivals", "prompts", "outputs", "source"),
    [
        (AZURE_2023, [0, 52_000_000_000, 52_000_100_000], [4808, 3180, 110], [10, 8, 27], "Azure"),
        (AZURE_2024, [0, 998_837_000_000], [1000, 2000], [20, 30], "Azure"),
        (BURST_GPT, [0, 113 * S], [472, 417], [18, 276], "BurstGPT"),
        (BURST_GPT_3, [0, 50_500_000_000_000], [906, 36], [446, 29], "BurstGPT"),
        (BLIS, [0, S // 4], [5, 1], [1, 2], "BLIS"),
        (BLIS_COUNTS, [0, S // 4], [5, 1], [1, 2], "BLIS"),
        (SPLITWISE, [0, S // 4], [512, 128], [7, 8], "Splitwise"),
        (PLAIN, [0, 0, 5 * S // 2], [10, 20, 30], [1, 2, 3], "plain"),
        (PLAIN.replace("\n", "\r\n"), [0, 0, 5 * S // 2], [10, 20, 30], [1, 2, 3], "plain"),
        ("\ufeff" + PLAIN, [0, 0, 5 * S // 2], [10, 20, 30], [1, 2, 3], "plain"),
        (MOONCAKE, [0, 3001 * S // 1000, 3001 * S // 1000], [1300, 512, 700], [500, 490, 3], "M"),
        (SHARE_GPT, [0, 0], [12, 5], [34, 6], "ShareGPT"),
    ],
)
def test_each_format_is_told_by_its_content(
    tmp_path: Path,
    text: str,
    arrivals: list[int],
    prompts: list[int],
    outputs: list[int],
    source: str,
) -> None:
    traffic = read(tmp_path, text)
    requests = traffic.requests
    assert requests.arrival_ps.tolist() == arrivals
    assert requests.prompt.tolist() == prompts
    assert requests.output.tolist() == outputs
    assert {each.dtype for each in (requests.arrival_ps, requests.prompt)} == {np.dtype(np.int64)}
    assert traffic.said.startswith(source)
    assert (traffic.users, requests.prefixes == ()) == (0, "hash_ids" not in text)


def test_a_trace_says_what_it_is_and_what_was_left_out(tmp_path: Path) -> None:
    assert str(read(tmp_path, BURST_GPT)) == (
        "BurstGPT trace t.log, failures left out: 1, 0.00885 requests/s: "
        "2 requests of 417 to 472 (mean 444) tokens in, 18 to 276 (mean 147) out"
    )
    assert str(read(tmp_path, SHARE_GPT)) == (
        "ShareGPT file t.log, all at once, conversations of one turn left out: 1: "
        "2 requests of 5 to 12 (mean 8) tokens in, 6 to 34 (mean 20) out"
    )


def test_hashes_of_a_mooncake_trace_are_kept(tmp_path: Path) -> None:
    requests = read(tmp_path, MOONCAKE).requests
    assert requests.prefixes == ((0, 1, 2), (0,), ())
    assert requests.block == 512
    late = read(tmp_path, MOONCAKE, window=(1, 10), requests=1).requests
    assert (late.prefixes, late.prompt.tolist(), late.arrival_ps.tolist()) == (((0,),), [512], [0])
    without = MOONCAKE.replace("hash_ids", "hashes")
    assert (read(tmp_path, without).requests.block) == 0


MANY = "arrival_s,prompt,output\n" + "".join(f"{at / 4},{at + 1},1\n" for at in range(100))
MANY_LINES = "".join(
    json.dumps({"timestamp": 250 * at, "input_length": at + 1, "output_length": 1}) + "\n"
    for at in range(100)
)


@pytest.mark.parametrize("text", [MANY, MANY_LINES])
@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        ({}, 0, 99),
        ({"requests": 10}, 0, 9),
        ({"requests": 1000}, 0, 99),
        ({"window": (0, 5)}, 0, 19),  # without the request at 5 s
        ({"window": (5, 10)}, 20, 39),
        ({"window": [5, 10.1], "requests": 3}, 20, 22),
        ({"window": (24.75, 1e9)}, 99, 99),
    ],
)
def test_a_part_of_a_trace_begins_at_its_first_request(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    text: str,
    chunk: int,
    given: dict[str, Any],
    first: int,
    last: int,
) -> None:
    monkeypatch.setattr("tpusim.traffic.csv_traces.CHUNK", chunk)
    requests = read(tmp_path, text, **given).requests
    assert requests.prompt.tolist() == list(range(first + 1, last + 2))
    assert requests.arrival_ps.tolist() == [S // 4 * at for at in range(last - first + 1)]


def test_a_trace_is_replayed_at_another_rate(tmp_path: Path) -> None:
    traffic, faster = read(tmp_path, MANY), read(tmp_path, MANY, rate_scale=2)
    assert (traffic.rate, faster.rate) == (4, 8)
    assert faster.requests.arrival_ps.tolist() == (traffic.requests.arrival_ps // 2).tolist()


def test_reading_ends_where_the_part_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tpusim.traffic.csv_traces.CHUNK", 7)
    broken = MANY + "x,y,z\n"
    assert len(read(tmp_path, broken, requests=20).requests) == 20
    assert len(read(tmp_path, broken, window=(0, 5)).requests) == 20
    with pytest.raises(TpusimError, match="line 102: arrival_s is 'x'"):
        read(tmp_path, broken)


def test_times_in_order_across_parts_that_are_read_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Dates of 100 ns, which a float of nanoseconds since 1970 cannot tell apart."""
    monkeypatch.setattr("tpusim.traffic.csv_traces.CHUNK", 2)
    rows = [f"2023-11-16 18:17:03.{at:07d},5,5\n" for at in range(9)]
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    arrivals = read(tmp_path, head + "".join(rows)).requests.arrival_ps
    assert arrivals.tolist() == [100_000 * at for at in range(9)]
    for place, line in [(1, 4), (2, 5)]:
        swapped = [*rows[:place], rows[place + 1], rows[place], *rows[place + 2 :]]
        with pytest.raises(TpusimError, match=rf"line {line}: TIMESTAMP is .*, earlier than in "):
            read(tmp_path, head + "".join(swapped))


def test_a_million_rows_are_read_in_seconds(tmp_path: Path) -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = "".join(f"{at}.0,GPT-4,{at % 999 + 1},446,1352,API log\n" for at in range(1_000_000))
    (tmp_path / "t.csv").write_text(head + rows)
    began = time.process_time()
    assert len(Traffic.read(tmp_path / "t.csv").requests) == 1_000_000
    assert time.process_time() - began < 4


HEAD = "arrival_s,prompt,output\n"
LINE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]}\n'


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("", {}, "t.log: an empty file; give a trace"),
        (" \n\n", {}, "an empty file"),
        (HEAD, {}, "no requests below the header"),
        (HEAD + "\n,,\n", {}, "no requests below the header"),
        (HEAD + "0,1,1\n2,1,1\n1,1,1\n", {}, "line 4: arrival_s is 1, earlier than in the line "),
        (HEAD + "2,1,1\n\n1,1,1\n", {}, "; sort the lines by arrival_s"),
        (HEAD + "0,1,0\n", {}, "line 2: output is 0; write a whole number of at least 1, or remo"),
        (HEAD + "0,1,1\n0,-5,1\n", {}, "line 3: prompt is -5;"),
        (HEAD + "0,1,1\n\n0,1.5,1\n", {}, "line 4: prompt is 1.5;"),
        (HEAD + "0,1,\n", {}, "line 2: output is empty;"),
        (HEAD + "0,1\n", {}, "line 2: output is empty;"),
        (HEAD + "0,1,many\n", {}, "line 2: output is 'many';"),
        (HEAD + "0,True,1\n", {}, "line 2: prompt is "),
        (HEAD + "0,1,999999999999\n", {}, "line 2: output is 999999999999;"),
        (HEAD + "0,1," + "9" * 40 + "\n", {}, "line 2: output is "),
        (HEAD + "nan,1,1\n", {}, "line 2: arrival_s is 'nan'; write the time of the arrival"),
        (HEAD + "inf,1,1\n", {}, "line 2: arrival_s is inf"),
        (HEAD + "0,1,024,128\n", {}, "line 2 has more cells than the header; put a cell that"),
        (HEAD + "0,1,1\n0,1,024,1,28\n", {}, "line 3 has more cells than the header; put a cell"),
        (HEAD + "0,1,,,,2\n0,1,,,,2\n", {}, "each line has more cells than the header; put a"),
        (HEAD + '0,"1,1\n', {}, "not a table of comma-separated values"),
        (HEAD + "0,1,1\n1e7,1,1\n", {}, "the requests span 116 days, and 106 can be simulated"),
        (HEAD + "0,1,1\n", {"window": (5, 9)}, "no requests in window=(5, 9)"),
        (HEAD + "0,1,1\n", {"window": (9, 5)}, "window is from 9 to 5 s; write a later end"),
        (HEAD + "0,1,1\n", {"window": (0,)}, "write its start and end in seconds"),
        (HEAD + "0,1,1\n", {"window": ("0", 1)}, "start of the window is '0'"),
        (HEAD + "0,1,1\n", {"window": 5}, "window is 5; write its start and end"),
        (HEAD + "0,1,1\n", {"requests": 0}, "requests is 0"),
        (HEAD + "0,1,1\n2,1,1\n", {"rate_scale": 0}, "factor of the rate is 0"),
        (HEAD + "0,1,1\n", {"rate_scale": 2}, "plain trace t.log has no arrival times to scale"),
        ("arrival_s,promt,output\n0,1,1\n", {}, "no column 'prompt', which a plain trace has; ren"),
        ("arrival_s,output\n0,1\n", {}, "the header has arrival_s, output"),
        ("timestamp,contexttokens,generatedtokens\n", {}, "which an Azure trace has; rename 'tim"),
        ('prompt,output,"a\nb"\n0,1,2', {}, "the header has prompt, output, a\ufffdb"),
        ("a,b,c\n1,2,3\n", {}, "no known trace has the header 'a,b,c'; write these columns of"),
        (AZURE_2024.replace("05-12", "13-12"), {}, "line 2: TIMESTAMP is '2024-13-12 00:00:00.00"),
        (AZURE_2024.replace("2024", "9999"), {}, "line 2: TIMESTAMP is '9999-05-12 00:00:00.00"),
        (BURST_GPT.replace(",18,", ",-18,"), {}, "line 2: Response tokens is -18"),
        (BURST_GPT.replace(",18,", ",x,"), {}, "line 2: Response tokens is 'x'"),
        (BLIS.replace("[101]", "[]"), {}, "line 2: decode_tokens is '[]'"),
        (LINE + "{\n", {}, "line 2 is no JSON (Expecting property name"),
        (LINE + "5\n", {}, "line 2 is 5; write one JSON object a line, with timestamp, input_len"),
        (LINE.replace("input_length", "input_len"), {}, "rename 'input_len' to it"),
        (LINE.replace("600", "null"), {}, "line 1: input_length is None; write a number"),
        (LINE.replace("600", "0"), {}, "line 1: input_length is 0; write a whole number of at le"),
        (LINE.replace("600", "9" * 5000), {}, "line 1 is no JSON"),
        (LINE.replace("[1]", "[1, 2, 3]"), {}, "line 1: 3 hash_ids for 600 tokens; write one for"),
        (LINE.replace("[1]", '["a"]'), {}, "line 1: hash_ids is ['a']; write a list of whole"),
        (LINE.replace(": 0", ": 9") + LINE, {}, "line 2: timestamp is 0, earlier than in the li"),
        (LINE.replace(": 0", ": NaN"), {}, "line 1: timestamp is nan"),
        ("[]", {}, "no requests; give a trace"),
        ("[" * 100_000, {}, "the file is no JSON"),
        ("[5]", {}, "conversation 1 has no list 'conversations'"),
        (SHARE_GPT.replace("tokens", "len"), {}, "conversation 1, turn 1 has no 'tokens'; count"),
        (SHARE_GPT.replace("34", "0"), {}, "conversation 1, turn 2: tokens is 0; write a whole"),
        (SHARE_GPT, {"window": (0, 1)}, "ShareGPT has no arrival times; leave out window"),
        (b"\xff\xfe\x00a", {}, "not a table of comma-separated values"),
        (HEAD.encode() + b"0,\xff,1\n", {}, "not a table of comma-separated values"),
    ],
)
def test_a_broken_trace_is_refused_in_a_sentence(
    tmp_path: Path, text: str | bytes, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(TpusimError) as caught:
        read(tmp_path, text, **given)
    assert words in str(caught.value)


def test_files_that_cannot_be_read_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path, words in [
        (tmp_path, "a folder; give a trace"),
        (tmp_path / "none", "cannot be read: No such file"),
        ("a\0b", "no path"),
        (5, "Traffic.read is given 5; write a path"),
    ]:
        with pytest.raises(TpusimError, match=words):
            Traffic.read(path)  # type: ignore[arg-type]
    monkeypatch.setattr("tpusim.traffic.traces.LARGEST_BYTES", 100)
    with pytest.raises(TpusimError, match="is too large for a trace"):
        read(tmp_path, MANY)


def test_traces_with_too_many_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("csv_traces", "json_traces"):
        monkeypatch.setattr(f"tpusim.traffic.{module}.MOST_REQUESTS", 99)
    for text in (MANY, MANY_LINES):
        with pytest.raises(TpusimError, match="more than 99 requests; "):
            read(tmp_path, text)


TRACES = (AZURE_2023, AZURE_2024, BURST_GPT_3, BLIS, SPLITWISE, PLAIN, MOONCAKE, SHARE_GPT)
PIECES = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "1e400", "nan", "\0", '"', ",", "\n", "\r", "[", "{", "}", "]"]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=5),
    st.binary(max_size=5),
)


@given(st.sampled_from(TRACES), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), PIECES)))
def test_any_change_of_a_trace_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    changes: list[tuple[float, int, str | bytes]],
) -> None:
    content = text.encode()
    for place, gone, piece in changes:
        at = int(place * len(content))
        put = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        content = content[:at] + put + content[at + gone :]
    try:
        requests = read(tmp_path_factory.mktemp("trace"), content).requests
    except TpusimError as error:
        said = str(error)
    else:
        said = f"read: {len(requests)} requests, the first at {requests.arrival_ps[0]} ps"
    assert len(said.splitlines()) == 1
    assert 10 < len(said) < 1000
