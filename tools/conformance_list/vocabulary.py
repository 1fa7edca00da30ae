"""The words of the list of cases: a recorder in any language needs no others."""

from __future__ import annotations

from collections.abc import Mapping

ENTRY: Mapping[str, str] = {
    "name": "how recordings call the case",
    "family": "the row of the page that it counts in",
    "kind": "`kernel`: encode one kernel; `graph`: encode a graph of inference; `training`: encode the training graph "
    "of the last node, an MPSCNNLossNode, over a batch; `object`: make something and read its properties; "
    "`matrices`: encode a kernel over Float32 matrices, its sources, that writes into another; `random`: fill a "
    "matrix; `spacing`: the bytes from row to row that are advised for each of `columns`; `filter`: encode an image "
    "filter over its sources into an image of the size `destination`, or the fit of a guided filter, or the `counts` "
    "of a histogram",
    "classes": "the classes that are asked; an answer says which have answered",
    "questions": "conventions that the answer settles",
    "compare": "`shape`: the numbers are drawn by a generator that is not documented",
    "kernel": "the object that is encoded",
    "sources": "arrays, as images in the order of the encode's arguments, Float32 unless a `format` stands with one",
    "destination": "[width, height, feature channels] of an image that is given; without it the kernel's policy sizes "
    "the result, and the default allocator of MPSImage makes it",
    "counts": "[channels, bins] of a histogram that is read instead of an image",
    "histograms": "arrays of counts, of which a filter makes its table first: the source's, and the one desired",
    "labels": "an array: labels of a loss",
    "labelWeights": "an array: its weights",
    "lossImageSize": "[width, height, feature channels]: labels are MPSCNNLossLabels with such a loss image, and not "
    "images",
    "gradients": "gradient kernels, encoded with the state of the forward kernel, that is not temporary: `kernel`; "
    "`incoming`, an array of the result's shape; `secondary`, which source is the secondary image, or `result`",
    "nodes": "filter nodes in order; the last one's result is the graph's",
    "format": "the graph's image format; a source's",
    "object": "what is made",
    "matrix": "[rows, columns] of the matrix that is written, of zeros before",
    "initial": "an array: what stands in that matrix before, instead of zeros",
    "dataType": "that of a row's elements",
    "columns": "numbers of columns",
    "read": "`result`, `gradients`, `loss`, `matrix`, `counts`: arrays; `gradientForWeights`, `gradientForBiases`, "
    "`gradientForGamma`, `gradientForBeta`: of the state, in training a list of what data sources are shown in the "
    "CPU's style, in the order of nodes; `size`: [width, height, feature channels]; `pixelFormat`: Metal's; "
    "`sourceOrder`: which source each handle of the graph is; `sourceStateCount`; `rowBytes`",
    "shows": "properties to read behind the encode; structs as lists of their numbers, a policy as its method",
}
"""Names of a case."""
VALUES: Mapping[str, str] = {
    "class": "an object: its class, with `arguments` by the names of the initializer, and `properties` that are set "
    "behind it; `a.b` is a property of a property",
    "shape": "an array, row-major: `numbers`, or number i is (`first` + (`seed` + i)³ mod 1013) / `over`; images are "
    "[height, width, feature channels], in training behind the number of images; weights [outputs, height, width, "
    "inputs]",
    "descriptor": "the data source of a convolution, with `weights` and `biases`, or `words` of one bit a weight",
    "gamma": "the data source of a normalization, with `beta`, `mean`, `variance`, `epsilon` and `groups`",
    "padding": "a policy: its method, or the selector of a preset",
    "coordinate": "MPSImageCoordinate: [x, y, channel]",
    "size": "MTLSize: [width, height, depth]",
    "origin": "MTLOrigin: [x, y, z]",
    "region": "MTLRegion: [x, y, z, width, height, depth]; -1 stands for all bits",
    "offset": "MPSOffset: [x, y, z]",
    "histogram": "MPSImageHistogramInfo: [bins, whether alpha has some, least and largest number of each channel]",
    "part": "MPSRegion in parts of the image: [x, y, width, height]",
    "uniform": "a distribution of random numbers: [minimum, maximum]",
    "normal": "a distribution of random numbers: [mean, standard deviation]",
    "source": "in nodes: the image node of a source, by its number",
    "node": "in nodes: the result of an earlier node, by its number",
}
"""Names that say what an object of JSON in the place of a value means; enumerations are numbers."""
BESIDE = (
    *("arguments", "properties", "numbers", "seed", "first", "over", "weights", "biases", "words", "beta", "mean"),
    *("variance", "epsilon", "groups", "incoming", "secondary"),
)
"""Names that stand with those."""
