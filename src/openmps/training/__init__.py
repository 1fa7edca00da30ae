"""Training a network: data, the sample network, the loop, run folders, measurements, pictures and progress."""

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
from openmps.training.loop import TrainingObserver, TrainingOptions, TrainingResult, describe_run, train
from openmps.training.metrics import ConfusionCounts, RunningMetrics, TrainingStatus
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.training.pictures import draw_curve, draw_misclassified
from openmps.training.progress import TrainingProgress
from openmps.training.run_folder import RunFolder

__all__ = [
    "ArrayConvolutionDataSource",
    "Batch",
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
    "iterate_batches",
    "load_dataset",
    "load_digits_dataset",
    "load_idx",
    "load_image",
    "load_image_folder",
    "optimizer_factory",
    "train",
]
