"""Models: builders of graphs, published dimensions and Hugging Face configs."""

from tpusim.models.architecture import Architecture as Architecture
from tpusim.models.architecture import GraphChoices as GraphChoices
from tpusim.models.bert import Bert as Bert
from tpusim.models.conformer import Conformer as Conformer
from tpusim.models.contrastive_captioner import CaptionDecoder as CaptionDecoder
from tpusim.models.contrastive_captioner import ContrastiveCaptioner as ContrastiveCaptioner
from tpusim.models.detectors import SSD as SSD
from tpusim.models.detectors import MaskRCNN as MaskRCNN
from tpusim.models.diffusion_unet import DiffusionUNet as DiffusionUNet
from tpusim.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from tpusim.models.evolved_transformer import EvolvedTransformer as EvolvedTransformer
from tpusim.models.hf import from_hf as from_hf
from tpusim.models.hf import hf_architecture as hf_architecture
from tpusim.models.hf import hf_dimensions as hf_dimensions
from tpusim.models.hf import hf_notes as hf_notes
from tpusim.models.image_decoder import ImageDecoder as ImageDecoder
from tpusim.models.joint_transformer import JointTransformer as JointTransformer
from tpusim.models.metnet2 import MetNet2 as MetNet2
from tpusim.models.mlp_mixer import MlpMixer as MlpMixer
from tpusim.models.model_keys import MODEL_KEYS as MODEL_KEYS
from tpusim.models.pieces import ExpertRouting as ExpertRouting
from tpusim.models.pieces import Latent as Latent
from tpusim.models.pieces import LossForm as LossForm
from tpusim.models.pieces import MoE as MoE
from tpusim.models.published_models import published_keys as published_keys
from tpusim.models.recurrent import Gnmt as Gnmt
from tpusim.models.resnet import ResNet as ResNet
from tpusim.models.self_attention import SelfAttention as SelfAttention
from tpusim.models.single_stream_transformer import (
    SingleStreamTransformer as SingleStreamTransformer,
)
from tpusim.models.transformer import Transformer as Transformer
from tpusim.models.two_towers import TextTower as TextTower
from tpusim.models.two_towers import TwoTowers as TwoTowers
from tpusim.models.unet3d import UNet3d as UNet3d
from tpusim.models.video_transformer import VideoTransformer as VideoTransformer
from tpusim.models.vision_transformer import VisionTransformer as VisionTransformer
from tpusim.models.zoo import ARCHITECTURE_NAMES as ARCHITECTURE_NAMES
from tpusim.models.zoo import ARCHITECTURES as ARCHITECTURES
from tpusim.models.zoo import architecture_of as architecture_of
from tpusim.models.zoo import load as load
from tpusim.models.zoo import names as names
from tpusim.models.zoo import source as source
from tpusim.models.zoo import unknown as unknown
