"""Serving engines: presets with sources, their command lines, and manifests that run them."""

from tpusim.serving.engines.buckets import Buckets as Buckets
from tpusim.serving.engines.engine import Engine as Engine
from tpusim.serving.engines.presets import EngineFact as EngineFact
from tpusim.serving.engines.presets import engine_names as engine_names
