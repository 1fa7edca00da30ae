"""Training a network: data, the sample network, the loop, run folders, measurements, pictures and progress."""

from openmps.core.training_state import Checkpointed
from openmps.training.checkpoint import Checkpoint, CheckpointFolder, graph_parts
from openmps.training.data import (
    Batch,
    Dataset,
    DataSplit,
    batches_per_epoch,
    epoch_order,
    iterate_batches,
    load_dataset,
    load_digits_dataset,
    load_idx,
    load_image,
    load_image_folder,
)
from openmps.training.data_sources import ArrayConvolutionDataSource, TrainableConvolutionDataSource
from openmps.training.inference import Classifier, Evaluation
from openmps.training.loop import TrainingObserver, TrainingResult, resume, train
from openmps.training.metrics import ConfusionCounts, RunningMetrics, TrainingStatus
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.training.options import TrainingOptions
from openmps.training.pictures import draw_curve, draw_misclassified
from openmps.training.progress import TrainingProgress
from openmps.training.run_description import describe_run, run_data, run_options
from openmps.training.run_folder import RunFolder

__all__ = [
    "ArrayConvolutionDataSource",
    "Batch",
    "Checkpoint",
    "CheckpointFolder",
    "Checkpointed",
    "Classifier",
    "ConfusionCounts",
    "DataSplit",
    "Dataset",
    "Evaluation",
    "NetworkShape",
    "RunFolder",
    "RunningMetrics",
    "SampleNetwork",
    "TrainableConvolutionDataSource",
    "TrainingObserver",
    "TrainingOptions",
    "TrainingProgress",
    "TrainingResult",
    "TrainingStatus",
    "batches_per_epoch",
    "describe_run",
    "draw_curve",
    "draw_misclassified",
    "epoch_order",
    "graph_parts",
    "iterate_batches",
    "load_dataset",
    "load_digits_dataset",
    "load_idx",
    "load_image",
    "load_image_folder",
    "optimizer_factory",
    "resume",
    "run_data",
    "run_options",
    "train",
]
