"""Every public name of `openmps.training`; see `openmps.names`."""

from openmps.core.training_state import Checkpointed as Checkpointed
from openmps.kernels.augmentation import ImageAugmentation as ImageAugmentation, MixUp as MixUp
from openmps.kernels.selection import AlternatingFlip as AlternatingFlip, ImageSelection as ImageSelection
from openmps.training.architectures import NETWORKS as NETWORKS, NetworkRow as NetworkRow
from openmps.training.augmentation import Augmentation as Augmentation
from openmps.training.augmented_batches import augmented_images as augmented_images
from openmps.training.callbacks import EpochReport as EpochReport, TrainingCallback as TrainingCallback
from openmps.training.checkpoint import (
    Checkpoint as Checkpoint,
    CheckpointFolder as CheckpointFolder,
    graph_parts as graph_parts,
)
from openmps.training.data import load_dataset as load_dataset, load_digits_dataset as load_digits_dataset
from openmps.training.data_sources import (
    ArrayConvolutionDataSource as ArrayConvolutionDataSource,
    TrainableConvolutionDataSource as TrainableConvolutionDataSource,
)
from openmps.training.dataset import (
    Batch as Batch,
    Dataset as Dataset,
    DataSplit as DataSplit,
    batches_per_epoch as batches_per_epoch,
    epoch_order as epoch_order,
    iterate_batches as iterate_batches,
)
from openmps.training.idx import load_idx as load_idx
from openmps.training.image_folder import load_image as load_image, load_image_folder as load_image_folder
from openmps.training.image_normalization_sources import (
    TrainableGroupNormalizationDataSource as TrainableGroupNormalizationDataSource,
    TrainableInstanceNormalizationDataSource as TrainableInstanceNormalizationDataSource,
)
from openmps.training.inference import Classifier as Classifier, Evaluation as Evaluation
from openmps.training.loop import (
    TrainingObserver as TrainingObserver,
    TrainingResult as TrainingResult,
    resume as resume,
    train as train,
)
from openmps.training.metrics import (
    ConfusionCounts as ConfusionCounts,
    RunningMetrics as RunningMetrics,
    TrainingStatus as TrainingStatus,
)
from openmps.training.muon import Muon as Muon
from openmps.training.network import (
    Network as Network,
    NetworkShape as NetworkShape,
    SampleNetwork as SampleNetwork,
    optimizer_factory as optimizer_factory,
)
from openmps.training.normalization_sources import (
    ArrayBatchNormalizationDataSource as ArrayBatchNormalizationDataSource,
    TrainableBatchNormalizationDataSource as TrainableBatchNormalizationDataSource,
)
from openmps.training.source_makers import TrainableDataSources as TrainableDataSources
from openmps.training.options import TrainingOptions as TrainingOptions
from openmps.training.pictures import draw_curve as draw_curve, draw_misclassified as draw_misclassified
from openmps.training.preprocessing import Preprocessing as Preprocessing
from openmps.training.progress import TrainingProgress as TrainingProgress
from openmps.training.run_description import (
    describe_run as describe_run,
    run_data as run_data,
    run_options as run_options,
)
from openmps.training.run_folder import RunFolder as RunFolder
from openmps.training.torch_modules import save_torch_module as save_torch_module
