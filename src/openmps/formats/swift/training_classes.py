"""Swift of the data sources that are trained, and of their optimizers; ``NAME`` is the model's.

The CPU's steps are those of the framework's optimizers (MPSNNOptimizers.h, macOS 10.14); see `ops.update.optimizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEMORY = """
@available(AVAILABLE)
extension NAMEFiles {
  /// Memory that the CPU and the device share.
  fileprivate static func buffer(_ device: MTLDevice, _ count: Int) throws -> MTLBuffer {
    guard let made = device.makeBuffer(length: 4 * count, options: .storageModeShared) else {
      throw NAMEError(description: "the device has no memory for \\(count) numbers")
    }
    return made
  }

  /// The same, with numbers from an offset of a file on.
  fileprivate static func buffer(
    _ device: MTLDevice, _ contents: NSData, _ offset: Int, _ count: Int
  ) throws -> MTLBuffer {
    let made = try buffer(device, count)
    contents.getBytes(made.contents(), range: NSRange(location: offset, length: 4 * count))
    return made
  }

  /// A vector of zeros for an optimizer.
  fileprivate static func vector(_ device: MTLDevice, _ count: Int) throws -> MPSVector {
    let zeros = try buffer(device, count)
    zeros.contents().initializeMemory(as: Float.self, repeating: 0, count: count)
    return MPSVector(
      buffer: zeros, descriptor: MPSVectorDescriptor(length: count, dataType: .float32))
  }
}
"""

_RULE = """
/// The optimizer of one layer, with its numbers for weights or gamma, then for biases or beta.
@available(AVAILABLE)
final class NAMERule {
MEMBERS

  init(device: MTLDevice, counts: [Int]) throws {
MADE
  }
STEP}
"""

_DESCRIPTOR = """
    let descriptor = MPSNNOptimizerDescriptor(
      learningRate: LEARNING_RATE,
      gradientRescale: RESCALE,
      applyGradientClipping: CLIPPING,
      gradientClipMax: CLIP_MAX,
      gradientClipMin: CLIP_MIN,
      regularizationType: REGULARIZATION,
      regularizationScale: DECAY
    )
"""

_STEP_HEAD = """
  /// Begin an update on the CPU.
  func begin() {
    step += 1
  }

  /// One step on the CPU of the numbers at a place.
  func update(_ place: Int, _ values: MTLBuffer, _ gradients: MTLBuffer) {
    let value = values.contents().assumingMemoryBound(to: Float.self)
    let gradient = gradients.contents().assumingMemoryBound(to: Float.self)
    for index in 0..<values.length / 4 {
      var g = gradient[index]
      if CLIPPING { g = min(max(g, CLIP_MIN), CLIP_MAX) }
      g *= RESCALE
REGULARIZED"""


@dataclass(frozen=True)
class Rule:
    """One kind of optimizer: what it is made of, and how it steps on the CPU."""

    kind: str
    initializer: str
    vectors: tuple[tuple[str, str], ...]
    """Names of its vectors in `NAMERule`, and the labels by which an encode takes them."""
    step: str
    """The rest of the CPU's step: ``g`` is the gradient, ``value[index]`` the number."""
    before: str = ""
    """What the CPU's step computes once."""

    def text(self, styles: tuple[bool, bool], values: Mapping[str, str]) -> str:
        """`NAMERule`, for updates on the device and on the CPU."""
        members, made, step = list[str](), list[str](), ""
        if styles[0]:
            members.append(f"  let optimizer: {self.kind}")
            members += [f"  let {name}: [MPSVector]" for name, _ in self.vectors]
            made.append(_DESCRIPTOR.strip("\n"))
            made.append(f"    optimizer = {self.kind}({self.initializer})")
            made += [f"    {name} = try counts.map {{ try NAMEFiles.vector(device, $0) }}" for name, _ in self.vectors]
        if styles[1]:
            members += [f"  private var {name}OnCPU: [[Float]]" for name, _ in self.vectors]
            members.append("  private var step = 0")
            zeros = "counts.map { [Float](repeating: 0, count: $0) }"
            made += [f"    {name}OnCPU = {zeros}" for name, _ in self.vectors]
            head = _STEP_HEAD.replace("    for index", f"{self.before}    for index")
            step = head + self.step + "    }\n  }\n"
        text = _RULE.replace("MEMBERS", "\n".join(members)).replace("MADE", "\n".join(made)).replace("STEP", step)
        return filled(text, values)

    def encode(self, head: str) -> str:
        """The call that steps on the device; ``head`` holds the states that it reads, and the result comes last."""
        vectors = "".join(f",\n      {label}: rule.{name}" for name, label in self.vectors)
        arguments = f"commandBuffer: commandBuffer, {head}{vectors},\n      resultState: result"
        return f"rule.optimizer.encode(\n      {arguments}\n    )"


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with its words in capitals replaced, the longest first."""
    for word in sorted(values, key=len, reverse=True):
        text = text.replace(word, values[word])
    return text


ADAM = Rule(
    "MPSNNOptimizerAdam",
    "\n      device: device, beta1: BETA1, beta2: BETA2, epsilon: EPSILON, timeStep: 0,"
    "\n      optimizerDescriptor: descriptor\n    ",
    (("momenta", "inputMomentumVectors"), ("velocities", "inputVelocityVectors")),
    """      let momentum = Float(BETA1) * momentaOnCPU[place][index] + Float(1 - BETA1) * g
      let velocity = Float(BETA2) * velocitiesOnCPU[place][index] + Float(1 - BETA2) * g * g
      momentaOnCPU[place][index] = momentum
      velocitiesOnCPU[place][index] = velocity
      value[index] -= rate * momentum / (velocity.squareRoot() + EPSILON)
""",
    """    let root = (1 - pow(BETA2, Double(step))).squareRoot()
    let rate = LEARNING_RATE * Float(root / (1 - pow(BETA1, Double(step))))
""",
)
AMSGRAD = Rule(
    ADAM.kind,
    ADAM.initializer,
    (*ADAM.vectors, ("maxima", "maximumVelocityVectors")),
    """      let momentum = Float(BETA1) * momentaOnCPU[place][index] + Float(1 - BETA1) * g
      let velocity = Float(BETA2) * velocitiesOnCPU[place][index] + Float(1 - BETA2) * g * g
      let largest = max(maximaOnCPU[place][index], velocity)
      momentaOnCPU[place][index] = momentum
      velocitiesOnCPU[place][index] = velocity
      maximaOnCPU[place][index] = largest
      value[index] -= rate * momentum / (largest.squareRoot() + EPSILON)
""",
    ADAM.before,
)
RMSPROP = Rule(
    "MPSNNOptimizerRMSProp",
    "\n      device: device, decay: RATE_OF_DECAY, epsilon: EPSILON,\n      optimizerDescriptor: descriptor\n    ",
    (("squares", "inputSumOfSquaresVectors"),),
    """      let square = Float(RATE_OF_DECAY) * squaresOnCPU[place][index] + Float(1 - RATE_OF_DECAY) * g * g
      squaresOnCPU[place][index] = square
      value[index] -= LEARNING_RATE * g / (square.squareRoot() + EPSILON)
""",
)
_DESCENT = (
    "MPSNNOptimizerStochasticGradientDescent",
    "\n      device: device, momentumScale: MOMENTUM, useNestrovMomentum: NESTEROV,"
    "\n      optimizerDescriptor: descriptor\n    ",
    (("momenta", "inputMomentumVectors"),),
)
DESCENT = Rule(
    *_DESCENT,
    """      let momentum = MOMENTUM * momentaOnCPU[place][index] + LEARNING_RATE * g
      momentaOnCPU[place][index] = momentum
      value[index] -= momentum
""",
)
NESTEROV = Rule(
    *_DESCENT,
    """      let momentum = MOMENTUM * momentaOnCPU[place][index] + g
      momentaOnCPU[place][index] = momentum
      value[index] -= LEARNING_RATE * (g + MOMENTUM * momentum)
""",
)

CONVOLUTION = """
/// Weights and biases that are trained, in memory that the CPU and the device share: once the
/// command buffers are done they are the numbers as they are now. The file holds float32 weights,
/// OHWI, then biases if there are some.
@available(AVAILABLE)
public final class NAMETrainedWeights: NSObject, MPSCNNConvolutionDataSource {
  private let name: String?
  private let file: URL
  private let shape: MPSCNNConvolutionDescriptor
  private let weightBuffer: MTLBuffer
  private let biasBuffer: MTLBuffer?
  private let rule: NAMERule

  init(
    device: MTLDevice, label: String?, file: URL, weightCount: Int, biasCount: Int,
    descriptor: MPSCNNConvolutionDescriptor
  ) throws {
    name = label
    self.file = file
    shape = descriptor
    let data = try NAMEFiles.contents(file, 4 * (weightCount + biasCount))
    weightBuffer = try NAMEFiles.buffer(device, data, 0, weightCount)
    biasBuffer =
      biasCount == 0 ? nil : try NAMEFiles.buffer(device, data, 4 * weightCount, biasCount)
    let counts = biasCount == 0 ? [weightCount] : [weightCount, biasCount]
    rule = try NAMERule(device: device, counts: counts)
    super.init()
  }

  /// Write the numbers as they are now into a folder, under the name of the file that they came
  /// from.
  public func save(to folder: URL) throws {
    var data = Data(bytes: weightBuffer.contents(), count: weightBuffer.length)
    if let biases = biasBuffer { data.append(Data(bytes: biases.contents(), count: biases.length)) }
    try data.write(to: folder.appendingPathComponent(file.lastPathComponent), options: .atomic)
  }

  public func dataType() -> MPSDataType {
    return .float32
  }

  public func descriptor() -> MPSCNNConvolutionDescriptor {
    return shape
  }

  public func weights() -> UnsafeMutableRawPointer {
    return weightBuffer.contents()
  }

  public func biasTerms() -> UnsafeMutablePointer<Float>? {
    return biasBuffer?.contents().assumingMemoryBound(to: Float.self)
  }

  public func load() -> Bool {
    return true
  }

  public func purge() {
  }

  public func label() -> String? {
    return name
  }

  @objc(kernelWeightsDataType)
  public func kernelWeightsDataType() -> MPSDataType {
    return PRECISION
  }
UPDATES
  public func copy(with zone: NSZone? = nil) -> Any {
    return self
  }

  @objc(copyWithZone:device:)
  public func copy(with zone: NSZone?, device: MTLDevice?) -> Self {
    return self
  }
}
"""

CONVOLUTION_ON_DEVICE = """
  @objc(updateWithCommandBuffer:gradientState:sourceState:)
  public func update(
    with commandBuffer: MTLCommandBuffer, gradientState: MPSCNNConvolutionGradientState,
    sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> MPSCNNConvolutionWeightsAndBiasesState? {
    let result = MPSCNNConvolutionWeightsAndBiasesState(weights: weightBuffer, biases: biasBuffer)
    ENCODE
    return result
  }
"""

CONVOLUTION_ON_CPU = """
  @objc(updateWithGradientState:sourceState:)
  public func update(
    with gradientState: MPSCNNConvolutionGradientState,
    sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> Bool {
    rule.begin()
    rule.update(0, weightBuffer, gradientState.gradientForWeights)
    if let biases = biasBuffer { rule.update(1, biases, gradientState.gradientForBiases) }
    return true
  }
"""

NORMALIZATION = """
/// Gamma and beta that are trained, running means and variances, in memory that the CPU and the
/// device share: once the command buffers are done they are the numbers as they are now. The file
/// holds float32 rows of gamma, beta, mean and variance.
@available(AVAILABLE)
public final class NAMETrainedNormalization: NSObject, MPSCNNBatchNormalizationDataSource {
  /// The variance of a batch counts so much: M / (M - 1) for batches of M pixels makes the running
  /// one unbiased.
  public var varianceFactor: Float = 1

  private let name: String?
  private let file: URL
  private let channels: Int
  private let small: Float
  private let momentum: Float
  private let rows: [MTLBuffer]
  private let rule: NAMERule

  init(
    device: MTLDevice, label: String?, file: URL, channels: Int, epsilon: Float, momentum: Float
  ) throws {
    name = label
    self.file = file
    self.channels = channels
    small = epsilon
    self.momentum = momentum
    let data = try NAMEFiles.contents(file, 16 * channels)
    rows = try (0..<4).map { try NAMEFiles.buffer(device, data, 4 * channels * $0, channels) }
    rule = try NAMERule(device: device, counts: [channels, channels])
    super.init()
  }

  public required init?(coder: NSCoder) {
    return nil  // made with a file
  }

  /// Write the numbers as they are now into a folder, under the name of the file that they came
  /// from.
  public func save(to folder: URL) throws {
    var data = Data()
    for row in rows { data.append(Data(bytes: row.contents(), count: row.length)) }
    try data.write(to: folder.appendingPathComponent(file.lastPathComponent), options: .atomic)
  }

  private func numbers(_ place: Int) -> UnsafeMutablePointer<Float> {
    return rows[place].contents().assumingMemoryBound(to: Float.self)
  }

  public func numberOfFeatureChannels() -> Int {
    return channels
  }

  public func gamma() -> UnsafeMutablePointer<Float>? {
    return numbers(0)
  }

  public func beta() -> UnsafeMutablePointer<Float>? {
    return numbers(1)
  }

  public func mean() -> UnsafeMutablePointer<Float>? {
    return numbers(2)
  }

  public func variance() -> UnsafeMutablePointer<Float>? {
    return numbers(3)
  }

  public func load() -> Bool {
    return true
  }

  public func purge() {
  }

  public func label() -> String? {
    return name
  }

  @objc(epsilon)
  public func epsilon() -> Float {
    return small
  }
UPDATES
  public func copy(with zone: NSZone? = nil) -> Any {
    return self
  }

  @objc(copyWithZone:device:)
  public func copy(with zone: NSZone?, device: MTLDevice?) -> Self {
    return self
  }
}
"""

NORMALIZATION_ON_DEVICE = """
  @objc(updateGammaAndBetaWithCommandBuffer:batchNormalizationState:)
  public func updateGammaAndBeta(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationGammaAndBetaState? {
    let result = MPSCNNNormalizationGammaAndBetaState(gamma: rows[0], beta: rows[1])
    ENCODE
    return result
  }

  @objc(updateMeanAndVarianceWithCommandBuffer:batchNormalizationState:)
  public func updateMeanAndVariance(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationMeanAndVarianceState? {
    guard let mean = batchNormalizationState.mean(),
      let variance = batchNormalizationState.variance()
    else { return nil }
    average(commandBuffer, mean, rows[2], 1)
    average(commandBuffer, variance, rows[3], varianceFactor)
    return MPSCNNNormalizationMeanAndVarianceState(mean: rows[2], variance: rows[3])
  }

  /// running += momentum (factor found - running), as a descent.
  private func average(
    _ commandBuffer: MTLCommandBuffer, _ found: MTLBuffer, _ running: MTLBuffer, _ factor: Float
  ) {
    let descriptor = MPSNNOptimizerDescriptor(
      learningRate: -momentum, gradientRescale: factor, regularizationType: .L2,
      regularizationScale: -1
    )
    let descent = MPSNNOptimizerStochasticGradientDescent(
      device: commandBuffer.device, momentumScale: 0, useNestrovMomentum: false,
      optimizerDescriptor: descriptor
    )
    let length = MPSVectorDescriptor(length: channels, dataType: .float32)
    let values = MPSVector(buffer: running, descriptor: length)
    descent.encode(
      commandBuffer: commandBuffer,
      inputGradientVector: MPSVector(buffer: found, descriptor: length),
      inputValuesVector: values, inputMomentumVector: nil, resultValuesVector: values
    )
  }
"""

NORMALIZATION_ON_CPU = """
  @objc(updateGammaAndBetaWithBatchNormalizationState:)
  public func updateGammaAndBeta(
    with batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> Bool {
    guard let gamma = batchNormalizationState.gradientForGamma(),
      let beta = batchNormalizationState.gradientForBeta()
    else { return false }
    rule.begin()
    rule.update(0, rows[0], gamma)
    rule.update(1, rows[1], beta)
    return true
  }

  @objc(updateMeanAndVarianceWithBatchNormalizationState:)
  public func updateMeanAndVariance(
    with batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> Bool {
    guard let mean = batchNormalizationState.mean(),
      let variance = batchNormalizationState.variance()
    else { return false }
    for (place, found, factor) in [(2, mean, Float(1)), (3, variance, varianceFactor)] {
      let running = numbers(place)
      let new = found.contents().assumingMemoryBound(to: Float.self)
      for index in 0..<channels {
        running[index] += momentum * (factor * new[index] - running[index])
      }
    }
    return true
  }
"""
