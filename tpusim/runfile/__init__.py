"""Run files: one TOML file per run, with the sections [slice], [model] and [plan].

A server has the sections [serving] and [traffic] in place of [plan]. A run that was measured has a
section [measured] besides, a sweep a section [sweep], and a search a section [search].
"""

from tpusim.runfile.measured import Measured as Measured
from tpusim.runfile.read_run import SimulationRun as SimulationRun
from tpusim.runfile.read_run import changed_plan as changed_plan
from tpusim.runfile.read_run import measured_of as measured_of
from tpusim.runfile.read_run import read_one_plan as read_one_plan
from tpusim.runfile.read_run import read_run as read_run
from tpusim.runfile.read_run import read_space as read_space
from tpusim.runfile.read_run import run_of as run_of
from tpusim.runfile.read_serving import read_serving as read_serving
from tpusim.runfile.read_serving import read_step as read_step
from tpusim.runfile.server_search import ServerSearchRun as ServerSearchRun
from tpusim.runfile.server_search import read_advised as read_advised
from tpusim.runfile.server_search import read_search as read_search
from tpusim.runfile.serving import ServingRun as ServingRun
from tpusim.runfile.serving import TrafficKeys as TrafficKeys
from tpusim.runfile.toml_tables import read_toml as read_toml
from tpusim.runfile.write_run import write_run as write_run
from tpusim.server.server_options import ServerOptions as ServerOptions
