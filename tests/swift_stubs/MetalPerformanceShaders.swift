// What exported sources use of Metal Performance Shaders but for nodes and enumerations, which tests/swift_compiler.py
// writes of its tables: initializers, properties and protocols as Swift imports them. Nothing is computed.

import Foundation
import Metal

// --- images, vectors, kernels ---

public protocol MPSImageAllocator {}
struct Allocator: MPSImageAllocator { let name: String }

public enum MPSDataLayout: UInt, Sendable {
  case HeightxWidthxFeatureChannels, featureChannelsxHeightxWidth
}

public func MPSSupportsMTLDevice(_ device: MTLDevice?) -> Bool { device != nil }

/// An image in memory of the host; those that a graph makes hold nothing but a number of theirs.
public class MPSImage {
  public let width: Int, height: Int
  public let featureChannels: Int, numberOfImages = 1
  public let featureChannelFormat: MPSImageFeatureChannelFormat
  var bytes: Data
  public init(width: Int, height: Int) {
    (self.width, self.height, featureChannels, featureChannelFormat) = (width, height, 1, .float16)
    bytes = Data(count: 2 * width * height)
  }
  public init(device: MTLDevice, imageDescriptor: MPSImageDescriptor) {
    (width, height) = (imageDescriptor.width, imageDescriptor.height)
    (featureChannels, featureChannelFormat) = (imageDescriptor.featureChannels, imageDescriptor.channelFormat)
    bytes = Data(count: width * height * featureChannels * (featureChannelFormat == .float32 ? 4 : 2))
  }
  public func synchronize(on commandBuffer: MTLCommandBuffer) {}
  public func readBytes(_ dataBytes: UnsafeMutableRawPointer, dataLayout: MPSDataLayout, imageIndex: Int) {
    bytes.copyBytes(to: dataBytes.assumingMemoryBound(to: UInt8.self), count: bytes.count)
  }
  public func writeBytes(_ dataBytes: UnsafeRawPointer, dataLayout: MPSDataLayout, imageIndex: Int) {
    bytes = Data(bytes: dataBytes, count: bytes.count)
  }
  public class func defaultAllocator() -> MPSImageAllocator { Allocator(name: "MPSImage") }
}

public class MPSTemporaryImage: MPSImage {
  public override class func defaultAllocator() -> MPSImageAllocator { Allocator(name: "MPSTemporaryImage") }
}

public final class MPSImageDescriptor {
  public var width = 0, height = 0, featureChannels = 1
  public var channelFormat = MPSImageFeatureChannelFormat.float16
  public init() {}
  public init(channelFormat: MPSImageFeatureChannelFormat, width: Int, height: Int, featureChannels: Int) {
    (self.channelFormat, self.width, self.height) = (channelFormat, width, height)
    self.featureChannels = featureChannels
  }
}

public struct MPSImageCoordinate {
  public var x: Int, y: Int, channel: Int
  public init(x: Int, y: Int, channel: Int) { (self.x, self.y, self.channel) = (x, y, channel) }
}

public struct MPSOffset {
  public var x: Int, y: Int, z: Int
  public init(x: Int, y: Int, z: Int) { (self.x, self.y, self.z) = (x, y, z) }
}

public final class MPSVectorDescriptor {
  public let length: Int, dataType: MPSDataType
  public init(length: Int, dataType: MPSDataType) { (self.length, self.dataType) = (length, dataType) }
}

public final class MPSVector {
  public let data: MTLBuffer, descriptor: MPSVectorDescriptor
  public init(buffer: MTLBuffer, descriptor: MPSVectorDescriptor) { (data, self.descriptor) = (buffer, descriptor) }
}

public class MPSKernel {
  public init() {}
}

public class MPSCNNKernel: MPSKernel {
  public var kernelWidth = 1, kernelHeight = 1, strideInPixelsX = 1, strideInPixelsY = 1
  public var dilationRateX = 1, dilationRateY = 1
  public var offset = MPSOffset(x: 0, y: 0, z: 0)
  public var edgeMode = MPSImageEdgeMode.zero
}

public final class MPSCNNConvolutionTranspose: MPSCNNKernel {
  public var kernelOffsetX = 0, kernelOffsetY = 0
}

public final class MPSCNNPoolingAverage: MPSCNNKernel {
  public var zeroPadSizeX = 0, zeroPadSizeY = 0
}

// --- states ---

public class MPSState {}

public final class MPSCNNConvolutionGradientState: MPSState {
  public let gradientForWeights: MTLBuffer, gradientForBiases: MTLBuffer
  public init(weights: MTLBuffer, biases: MTLBuffer) { (gradientForWeights, gradientForBiases) = (weights, biases) }
}

public final class MPSCNNConvolutionWeightsAndBiasesState: MPSState {
  public let weights: MTLBuffer, biases: MTLBuffer?
  public init(weights: MTLBuffer, biases: MTLBuffer?) { (self.weights, self.biases) = (weights, biases) }
}

public final class MPSCNNBatchNormalizationState: MPSState {
  let rows: [MTLBuffer?]
  public init(rows: [MTLBuffer?]) { self.rows = rows }
  public func gradientForGamma() -> MTLBuffer? { rows[0] }
  public func gradientForBeta() -> MTLBuffer? { rows[1] }
  public func mean() -> MTLBuffer? { rows[2] }
  public func variance() -> MTLBuffer? { rows[3] }
}

public final class MPSCNNNormalizationGammaAndBetaState: MPSState {
  public init(gamma: MTLBuffer, beta: MTLBuffer) {}
}

public final class MPSCNNNormalizationMeanAndVarianceState: MPSState {
  public init(mean: MTLBuffer, variance: MTLBuffer) {}
}

// --- handles and padding ---

public protocol MPSHandle: NSObjectProtocol, NSSecureCoding {
  func label() -> String?
}

public protocol MPSNNPadding: NSObjectProtocol, NSSecureCoding {
  func paddingMethod() -> MPSNNPaddingMethod
  func label() -> String
  func inverse() -> Self?
  func destinationImageDescriptor(
    forSourceImages sourceImages: [MPSImage], sourceStates: [MPSState]?, for kernel: MPSKernel,
    suggestedDescriptor descriptor: MPSImageDescriptor
  ) -> MPSImageDescriptor
}

public final class MPSNNDefaultPadding: NSObject, MPSNNPadding {
  let method: MPSNNPaddingMethod
  public init(method: MPSNNPaddingMethod) { self.method = method }
  public static var supportsSecureCoding: Bool { true }
  public init?(coder: NSCoder) { nil }
  public func encode(with coder: NSCoder) {}
  public func paddingMethod() -> MPSNNPaddingMethod { method }
  public func label() -> String { "" }
  public func inverse() -> MPSNNDefaultPadding? { nil }
  public func destinationImageDescriptor(
    forSourceImages sourceImages: [MPSImage], sourceStates: [MPSState]?, for kernel: MPSKernel,
    suggestedDescriptor descriptor: MPSImageDescriptor
  ) -> MPSImageDescriptor { descriptor }
  public class func forTensorflowAveragePooling() -> Self { Self(method: MPSNNPaddingMethod(rawValue: 0x401c)) }
  public class func forTensorflowAveragePoolingValidOnly() -> Self { Self(method: MPSNNPaddingMethod(rawValue: 0x400e)) }
}

// --- descriptors ---

public final class MPSNNNeuronDescriptor {
  public class func cnnNeuronDescriptor(with type: MPSCNNNeuronType, a: Float, b: Float, c: Float) -> Self { Self() }
  public class func cnnNeuronPReLUDescriptor(with data: Data, noCopy: Bool) -> Self { Self() }
}

public class MPSCNNConvolutionDescriptor {
  public var strideInPixelsX = 1, strideInPixelsY = 1, dilationRateX = 1, dilationRateY = 1, groups = 1
  public var fusedNeuronDescriptor = MPSNNNeuronDescriptor()
  let kernelWidth: Int, kernelHeight: Int, inputs: Int, outputs: Int
  public init(kernelWidth: Int, kernelHeight: Int, inputFeatureChannels: Int, outputFeatureChannels: Int) {
    (self.kernelWidth, self.kernelHeight) = (kernelWidth, kernelHeight)
    (inputs, outputs) = (inputFeatureChannels, outputFeatureChannels)
  }
  public func setBatchNormalizationParametersForInferenceWithMean(
    _ mean: UnsafePointer<Float>?, variance: UnsafePointer<Float>?, gamma: UnsafePointer<Float>?,
    beta: UnsafePointer<Float>?, epsilon: Float
  ) {}
  /// Numbers of weights: of one filter and in all.
  func count(of type: MPSDataType) -> Int {
    if type == .uInt32 { return outputs * kernelHeight * kernelWidth * ((inputs / groups + 31) / 32) }
    return self is MPSCNNDepthWiseConvolutionDescriptor
      ? outputs * kernelHeight * kernelWidth : outputs * kernelHeight * kernelWidth * inputs / groups
  }
}

public final class MPSCNNDepthWiseConvolutionDescriptor: MPSCNNConvolutionDescriptor {}

public final class MPSCNNSubPixelConvolutionDescriptor: MPSCNNConvolutionDescriptor {
  public var subPixelScaleFactor = 1
}

public class MPSCNNLossDescriptor {
  public var weight: Float = 1, labelSmoothing: Float = 0, epsilon: Float = 0, delta: Float = 1
  public var numberOfClasses = 1, reduceAcrossBatch = false
  public required init(type: MPSCNNLossType, reductionType: MPSCNNReductionType) {}
}

public final class MPSCNNYOLOLossDescriptor {
  public let xyLossDescriptor: MPSCNNLossDescriptor, whLossDescriptor: MPSCNNLossDescriptor
  public let confidenceLossDescriptor: MPSCNNLossDescriptor, classesLossDescriptor: MPSCNNLossDescriptor
  public var rescore = false, reduceAcrossBatch = false
  public var scaleXY: Float = 0, scaleWH: Float = 0, scaleNoObject: Float = 0, scaleObject: Float = 0
  public var scaleClass: Float = 0, minIOUForObjectPresence: Float = 0, maxIOUForObjectAbsence: Float = 0
  init(_ types: [MPSCNNLossType], _ reduction: MPSCNNReductionType) {
    let made = types.map { MPSCNNLossDescriptor(type: $0, reductionType: reduction) }
    (xyLossDescriptor, whLossDescriptor) = (made[0], made[1])
    (confidenceLossDescriptor, classesLossDescriptor) = (made[2], made[3])
  }
  public class func cnnLossDescriptor(
    withXYLossType xy: MPSCNNLossType, whLossType: MPSCNNLossType, confidenceLossType: MPSCNNLossType,
    classesLossType: MPSCNNLossType, reductionType: MPSCNNReductionType, anchorBoxes: Data, numberOfAnchorBoxes: Int
  ) -> MPSCNNYOLOLossDescriptor {
    precondition(anchorBoxes.count == 8 * numberOfAnchorBoxes)
    return MPSCNNYOLOLossDescriptor([xy, whLossType, confidenceLossType, classesLossType], reductionType)
  }
}

// --- data sources: methods that the headers call optional have a body that does nothing ---

public struct MPSCNNWeightsQuantizationType: RawRepresentable {
  public let rawValue: UInt32
  public init?(rawValue: UInt32) { self.rawValue = rawValue }
}

public protocol MPSCNNConvolutionDataSource: NSObjectProtocol, NSCopying {
  func dataType() -> MPSDataType
  func descriptor() -> MPSCNNConvolutionDescriptor
  func weights() -> UnsafeMutableRawPointer
  func biasTerms() -> UnsafeMutablePointer<Float>?
  func load() -> Bool
  func purge()
  func label() -> String?
  func kernelWeightsDataType() -> MPSDataType
  func update(
    with gradientState: MPSCNNConvolutionGradientState, sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> Bool
  func update(
    with commandBuffer: MTLCommandBuffer, gradientState: MPSCNNConvolutionGradientState,
    sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> MPSCNNConvolutionWeightsAndBiasesState?
}

extension MPSCNNConvolutionDataSource {
  public func update(
    with gradientState: MPSCNNConvolutionGradientState, sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> Bool { false }
  public func update(
    with commandBuffer: MTLCommandBuffer, gradientState: MPSCNNConvolutionGradientState,
    sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> MPSCNNConvolutionWeightsAndBiasesState? { nil }
}

public protocol NormalizationDataSource: NSObjectProtocol, NSCopying {
  func gamma() -> UnsafeMutablePointer<Float>?
  func beta() -> UnsafeMutablePointer<Float>?
  func epsilon() -> Float
  func label() -> String?
}

public protocol MPSCNNInstanceNormalizationDataSource: NormalizationDataSource {
  var numberOfFeatureChannels: Int { get }
  init?(coder: NSCoder)
}

public protocol MPSCNNGroupNormalizationDataSource: NormalizationDataSource {
  var numberOfFeatureChannels: Int { get }
  var numberOfGroups: Int { get set }
  init?(coder: NSCoder)
}

public protocol MPSCNNBatchNormalizationDataSource: NormalizationDataSource {
  func numberOfFeatureChannels() -> Int
  func mean() -> UnsafeMutablePointer<Float>?
  func variance() -> UnsafeMutablePointer<Float>?
  func load() -> Bool
  func purge()
  init?(coder: NSCoder)
  func updateGammaAndBeta(with batchNormalizationState: MPSCNNBatchNormalizationState) -> Bool
  func updateMeanAndVariance(with batchNormalizationState: MPSCNNBatchNormalizationState) -> Bool
  func updateGammaAndBeta(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationGammaAndBetaState?
  func updateMeanAndVariance(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationMeanAndVarianceState?
}

extension MPSCNNBatchNormalizationDataSource {
  public func updateGammaAndBeta(with batchNormalizationState: MPSCNNBatchNormalizationState) -> Bool { false }
  public func updateMeanAndVariance(with batchNormalizationState: MPSCNNBatchNormalizationState) -> Bool { false }
  public func updateGammaAndBeta(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationGammaAndBetaState? { nil }
  public func updateMeanAndVariance(
    with commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState
  ) -> MPSCNNNormalizationMeanAndVarianceState? { nil }
}

// --- optimizers ---

public final class MPSNNOptimizerDescriptor {
  let numbers: [Float]
  public init(
    learningRate: Float, gradientRescale: Float, applyGradientClipping: Bool, gradientClipMax: Float,
    gradientClipMin: Float, regularizationType: MPSNNRegularizationType, regularizationScale: Float
  ) {
    numbers = [learningRate, gradientRescale, regularizationScale]
  }
  public init(
    learningRate: Float, gradientRescale: Float, regularizationType: MPSNNRegularizationType, regularizationScale: Float
  ) {
    numbers = [learningRate, gradientRescale, regularizationScale]
  }
}

public class MPSNNOptimizer: MPSKernel {
  /// What was encoded: the optimizer's class, and how many vectors and of what lengths went in.
  nonisolated(unsafe) public static var encoded: [String] = []
  func add(_ vectors: [MPSVector]?...) {
    let lengths = vectors.map { ($0 ?? []).map { String($0.descriptor.length) }.joined(separator: "+") }
    MPSNNOptimizer.encoded.append("\(type(of: self)) \(lengths.joined(separator: " "))")
  }
}

public final class MPSNNOptimizerAdam: MPSNNOptimizer {
  public init(
    device: MTLDevice, beta1: Double, beta2: Double, epsilon: Float, timeStep: Int,
    optimizerDescriptor: MPSNNOptimizerDescriptor
  ) {}
  public func encode(
    commandBuffer: MTLCommandBuffer, convolutionGradientState: MPSCNNConvolutionGradientState,
    convolutionSourceState: MPSCNNConvolutionWeightsAndBiasesState, inputMomentumVectors: [MPSVector]?,
    inputVelocityVectors: [MPSVector]?, maximumVelocityVectors: [MPSVector]? = nil,
    resultState: MPSCNNConvolutionWeightsAndBiasesState
  ) { add(inputMomentumVectors, inputVelocityVectors, maximumVelocityVectors) }
  public func encode(
    commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState,
    inputMomentumVectors: [MPSVector]?, inputVelocityVectors: [MPSVector]?,
    maximumVelocityVectors: [MPSVector]? = nil, resultState: MPSCNNNormalizationGammaAndBetaState
  ) { add(inputMomentumVectors, inputVelocityVectors, maximumVelocityVectors) }
}

public final class MPSNNOptimizerRMSProp: MPSNNOptimizer {
  public init(device: MTLDevice, decay: Double, epsilon: Float, optimizerDescriptor: MPSNNOptimizerDescriptor) {}
  public func encode(
    commandBuffer: MTLCommandBuffer, convolutionGradientState: MPSCNNConvolutionGradientState,
    convolutionSourceState: MPSCNNConvolutionWeightsAndBiasesState, inputSumOfSquaresVectors: [MPSVector]?,
    resultState: MPSCNNConvolutionWeightsAndBiasesState
  ) { add(inputSumOfSquaresVectors) }
  public func encode(
    commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState,
    inputSumOfSquaresVectors: [MPSVector]?, resultState: MPSCNNNormalizationGammaAndBetaState
  ) { add(inputSumOfSquaresVectors) }
}

public final class MPSNNOptimizerStochasticGradientDescent: MPSNNOptimizer {
  let rate: MPSNNOptimizerDescriptor
  public init(
    device: MTLDevice, momentumScale: Float, useNestrovMomentum: Bool, optimizerDescriptor: MPSNNOptimizerDescriptor
  ) { rate = optimizerDescriptor }
  public func encode(
    commandBuffer: MTLCommandBuffer, convolutionGradientState: MPSCNNConvolutionGradientState,
    convolutionSourceState: MPSCNNConvolutionWeightsAndBiasesState, inputMomentumVectors: [MPSVector]?,
    resultState: MPSCNNConvolutionWeightsAndBiasesState
  ) { add(inputMomentumVectors) }
  public func encode(
    commandBuffer: MTLCommandBuffer, batchNormalizationState: MPSCNNBatchNormalizationState,
    inputMomentumVectors: [MPSVector]?, resultState: MPSCNNNormalizationGammaAndBetaState
  ) { add(inputMomentumVectors) }
  public func encode(
    commandBuffer: MTLCommandBuffer, inputGradientVector: MPSVector, inputValuesVector: MPSVector,
    inputMomentumVector: MPSVector?, resultValuesVector: MPSVector
  ) { add([inputGradientVector], [inputValuesVector]) }
}

// --- nodes ---

public final class MPSNNImageNode {
  public var handle: MPSHandle?
  public var format = MPSImageFeatureChannelFormat.none
  public var imageAllocator: MPSImageAllocator = MPSTemporaryImage.defaultAllocator()
  public var exportFromGraph = false, synchronizeResource = false, stopGradient = false
  public init(handle: MPSHandle?) { self.handle = handle }
}

public class MPSNNStateNode {
  public var handle: MPSHandle?
  public var exportFromGraph = false, synchronizeResource = false
  public required init() {}
}

public class MPSNNGradientStateNode: MPSNNStateNode {}
public class MPSCNNConvolutionGradientStateNode: MPSNNGradientStateNode {}
public final class MPSCNNConvolutionTransposeGradientStateNode: MPSCNNConvolutionGradientStateNode {}
public class MPSNNBinaryGradientStateNode: MPSNNStateNode {}
public final class MPSNNMultiaryGradientStateNode: MPSNNStateNode {}
public final class MPSNNLabelsNode: MPSNNStateNode {}

public class MPSNNFilterNode {
  public let resultImage = MPSNNImageNode(handle: nil)
  public var label: String?
  public var paddingPolicy: MPSNNPadding = MPSNNDefaultPadding(method: .sizeSame)
  /// What a test removes.
  nonisolated(unsafe) public static var leavesStates = true
  /// What the initializer was given, by its labels.
  public let given: [(String, Any)]
  public let resultState: MPSNNStateNode?

  init(_ given: [(String, Any)]) {
    self.given = given
    resultState = MPSNNFilterNode.leavesStates ? type(of: self).stateClass.init() : nil
    MPSNNGraph.made.append(self)
  }

  public var resultStates: [MPSNNStateNode]? { resultState.map { [$0] } }
  class var stateClass: MPSNNStateNode.Type { MPSNNGradientStateNode.self }
}

public class MPSNNGradientFilterNode: MPSNNFilterNode {}

public class MPSNNGraph {
  /// Nodes that were made since the last graph.
  nonisolated(unsafe) static var made: [MPSNNFilterNode] = []
  public let nodes: [MPSNNFilterNode], results: [(MPSNNImageNode, Bool)]
  public var format = MPSImageFeatureChannelFormat.float16
  public var outputStateIsTemporary = false
  public var label: String?
  public var destinationImageAllocator: MPSImageAllocator = MPSImage.defaultAllocator()
  nonisolated(unsafe) public static var devicesRunGraphs = true

  public convenience init?(device: MTLDevice, resultImage: MPSNNImageNode, resultImageIsNeeded: Bool) {
    self.init([(resultImage, resultImageIsNeeded)])
  }

  public convenience init?(
    device: MTLDevice, resultImages: [MPSNNImageNode], resultsAreNeeded: UnsafeMutablePointer<ObjCBool>
  ) {
    self.init(resultImages.enumerated().map { ($1, resultsAreNeeded[$0].boolValue) })
  }

  init?(_ results: [(MPSNNImageNode, Bool)]) {
    guard MPSNNGraph.devicesRunGraphs else { return nil }
    (nodes, self.results, MPSNNGraph.made) = (MPSNNGraph.made, results, [])
  }

  /// The images that filters hand out, in their order.
  var exported: [MPSNNImageNode] { nodes.map(\.resultImage).filter(\.exportFromGraph) }
  public var intermediateImageHandles: [MPSHandle]? { exported.compactMap(\.handle) }
  public var sourceImageHandles: [MPSHandle] {
    let made = nodes.map { ObjectIdentifier($0.resultImage) }
    let read = nodes.flatMap { $0.given.compactMap { $0.1 as? MPSNNImageNode } }
    return read.filter { !made.contains(ObjectIdentifier($0)) }.compactMap(\.handle)
  }

  public func encode(to commandBuffer: MTLCommandBuffer, sourceImages: [MPSImage]) -> MPSImage? { nil }
  /// Each image that comes out has one row of numbers more than the one before, its place in each byte.
  public func encode(
    to commandBuffer: MTLCommandBuffer, sourceImages: [MPSImage], sourceStates: [MPSState]?,
    intermediateImages: NSMutableArray?, destinationStates: NSMutableArray?
  ) -> MPSImage? {
    for place in exported.indices {
      let form = place % 2 == 0 ? MPSImageFeatureChannelFormat.float16 : .float32
      let size = MPSImageDescriptor(channelFormat: form, width: 2, height: place + 1, featureChannels: 3)
      let image = MPSImage(device: commandBuffer.device, imageDescriptor: size)
      image.bytes = Data(repeating: UInt8(place), count: image.bytes.count)
      intermediateImages?.add(image)
    }
    return nil
  }
  public func encodeBatch(
    to commandBuffer: MTLCommandBuffer, sourceImages: [[MPSImage]], sourceStates: [[MPSState]]?
  ) -> [MPSImage]? { nil }
}
