"""Frames: what a step has around the bodies that the lowering makes."""

from tpusim.frames.accumulate import MICROBATCHES as MICROBATCHES
from tpusim.frames.accumulate import accumulator as accumulator
from tpusim.frames.accumulate import addition as addition
from tpusim.frames.accumulate import is_microbatches as is_microbatches
from tpusim.frames.accumulate import zeros as zeros
from tpusim.frames.body_frame import cast_weights as cast_weights
from tpusim.frames.body_frame import infeed as infeed
from tpusim.frames.body_frame import sizes_of as sizes_of
from tpusim.frames.body_frame import stored_weights as stored_weights
from tpusim.frames.forward_frame import ForwardFrame as ForwardFrame
from tpusim.frames.optimizer import Updates as Updates
from tpusim.frames.optimizer import trained as trained
from tpusim.frames.training_frame import TrainingFrame as TrainingFrame
from tpusim.frames.training_frame import asked_place as asked_place
from tpusim.frames.training_frame import choices_of as choices_of
from tpusim.frames.training_frame import updates_of as updates_of
