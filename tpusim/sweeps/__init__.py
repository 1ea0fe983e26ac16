"""Many plans of one model, each simulated, as a table."""

from tpusim.sweeps.dask_cluster import cluster as cluster
from tpusim.sweeps.scaling import Scaling as Scaling
from tpusim.sweeps.scaling import scaling as scaling
from tpusim.sweeps.search_axes import SearchAxis as SearchAxis
from tpusim.sweeps.search_axes import SweepCandidate as SweepCandidate
from tpusim.sweeps.space import PLACEMENTS as PLACEMENTS
from tpusim.sweeps.space import Space as Space
from tpusim.sweeps.space import candidates as candidates
from tpusim.sweeps.sweep import sweep as sweep
