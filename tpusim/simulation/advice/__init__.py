"""Advice: changes of a run that are simulated, one by one and together."""

from tpusim.simulation.advice.single_changes import plan_advice as plan_advice
from tpusim.simulation.advice.single_changes import replay_advice as replay_advice
from tpusim.simulation.advice.single_changes import step_time_of as step_time_of
