// What recorder/record.swift uses of Metal Performance Shaders, but for the classes of kernels and nodes, which
// tests/recorder_compiler.py writes. Objects note how they were made and set, in the words of the list of cases; an
// encode asks whoever watches the folder OPENMPS_STUB what comes out.

import Foundation
import Metal

public typealias Entry = [String: Any]

/// The values of a case that was put together of calls.
func asked(_ entry: Entry) -> Entry {
  let folder = ProcessInfo.processInfo.environment["OPENMPS_STUB"]!, name = "\(folder)/\(UUID().uuidString)"
  let data = try! JSONSerialization.data(withJSONObject: entry)
  try! data.write(to: URL(fileURLWithPath: name + ".request"), options: .atomic)
  while true {
    if let found = FileManager.default.contents(atPath: name + ".response") {
      try? FileManager.default.removeItem(atPath: name + ".response")
      let values = try! JSONSerialization.jsonObject(with: found) as! Entry
      if values["refused"] != nil { abort() }  // as the framework ends a process that misuses it
      return values
    }
    usleep(1000)
  }
}

func number(_ value: Any?) -> Double {
  if let text = value as? String { return text == "nan" ? .nan : text == "inf" ? .infinity : -.infinity }
  return (value as! NSNumber).doubleValue
}

func array(_ shape: [Int], _ values: [Float]) -> Entry {
  let numbers: [Any] = values.map { (value: Float) -> Any in
    if value.isNaN { return "nan" }
    if value.isInfinite { return value > 0 ? "inf" : "-inf" }
    return Double(value)
  }
  return ["shape": shape, "numbers": numbers]
}

func whole(_ value: Any?) -> [Int] { (value as! [Any]).map { ($0 as! NSNumber).intValue } }

// --- structs, enumerations --------------------------------------------------------------------------------------------

public struct MPSOffset {
  public var x: Int, y: Int, z: Int
  public init(x: Int, y: Int, z: Int) { (self.x, self.y, self.z) = (x, y, z) }
}

public struct MPSImageCoordinate {
  public var x: Int, y: Int, channel: Int
  public init(x: Int, y: Int, channel: Int) { (self.x, self.y, self.channel) = (x, y, channel) }
}

public enum MPSDataLayout: Sendable { case HeightxWidthxFeatureChannels }

public enum MPSImageFeatureChannelFormat: UInt { case unorm8 = 1, unorm16, float16, float32 }

public enum MPSDataType: UInt32 {
  case float32 = 0x1000_0020, float16 = 0x1000_0010, int8 = 0x2000_0008, int16 = 0x2000_0010, int32 = 0x2000_0020
  case uInt8 = 8, uInt16 = 16, uInt32 = 32
}

public enum MPSImageEdgeMode: UInt { case zero, clamp, mirror, mirrorWithEdge, constant }

public enum MPSCNNBinaryConvolutionType: UInt { case binaryWeights, XNOR, AND }

public enum MPSCNNBinaryConvolutionFlags: UInt { case none, useBetaScaling }

public enum MPSCNNLossType: UInt32 {
  case meanAbsoluteError, meanSquaredError, softMaxCrossEntropy, sigmoidCrossEntropy, categoricalCrossEntropy, hinge
  case huber, cosineDistance, log, kullbackLeiblerDivergence
}

public enum MPSCNNReductionType: Int32 { case none, sum, mean, sumByNonZeroWeights }

public struct MPSOrigin {
  public var x: Double, y: Double, z: Double
  public init(x: Double, y: Double, z: Double) { (self.x, self.y, self.z) = (x, y, z) }
}

public struct MPSSize {
  public var width: Double, height: Double, depth: Double
  public init(width: Double, height: Double, depth: Double) {
    (self.width, self.height, self.depth) = (width, height, depth)
  }
}

public struct MPSRegion {
  public var origin: MPSOrigin, size: MPSSize
  public init(origin: MPSOrigin, size: MPSSize) { (self.origin, self.size) = (origin, size) }
}

func parts(_ start: UnsafePointer<MPSRegion>, _ count: Int) -> [Entry] {
  UnsafeBufferPointer(start: start, count: count).map {
    ["part": [$0.origin.x, $0.origin.y, $0.size.width, $0.size.height]]
  }
}

public enum MPSCNNNeuronType: Int32 {
  case none, reLU, linear, sigmoid, hardSigmoid, tanH, absolute, softPlus, softSign, elu, pReLU, reLUN, power
  case exponential, logarithm, geLU
}

public struct MPSNNPaddingMethod { public let rawValue: UInt; public init(rawValue: UInt) { self.rawValue = rawValue } }

// --- objects that note ------------------------------------------------------------------------------------------------


public class Noted: NSObject {
  let arguments: Entry
  public var properties: Entry = [:]
  init(_ arguments: Entry) { self.arguments = arguments }
  /// Properties of objects that it holds, too.
  var set: Entry { properties }
  var entry: Entry {
    var found: Entry = ["class": String(describing: type(of: self)), "arguments": arguments]
    if !set.isEmpty { found["properties"] = set }
    return found
  }
  func shows(_ name: String) -> Any? { nil }
}

public protocol MPSImageAllocator {}
struct Allocator: MPSImageAllocator {}

public final class MPSImageDescriptor {
  let format: MPSImageFeatureChannelFormat, size: [Int]
  public init(channelFormat: MPSImageFeatureChannelFormat, width: Int, height: Int, featureChannels: Int) {
    (format, size) = (channelFormat, [height, width, featureChannels])
  }
}

public final class MPSImage: NSObject {
  var shape: [Int], values: [Float]
  public private(set) var numberOfImages = 1
  public var featureChannelFormat: MPSImageFeatureChannelFormat, pixelFormat = MTLPixelFormat(rawValue: 0)
  public init(device: MTLDevice, imageDescriptor: MPSImageDescriptor) {
    (shape, featureChannelFormat) = (imageDescriptor.size, imageDescriptor.format)
    values = Array(repeating: 0, count: shape.reduce(1, *))
  }
  init(_ found: Any?, pixelFormat code: Any? = nil) {
    let found = found as! Entry
    shape = whole(found["shape"])
    values = (found["numbers"] as! [Any]).map { Float(number($0)) }
    if shape.count == 4 { numberOfImages = shape.removeFirst() }
    featureChannelFormat = .float32
    if let code = code as? NSNumber {
      pixelFormat = MTLPixelFormat(rawValue: code.uintValue)
      if [25, 65, 115].contains(code.intValue) { featureChannelFormat = .float16 }
    }
  }
  public var height: Int { shape[0] }
  public var width: Int { shape[1] }
  public var featureChannels: Int { shape[2] }
  var entry: Entry {
    var found = array(shape, values)
    if featureChannelFormat != .float32 { found["format"] = Int(featureChannelFormat.rawValue) }
    return found
  }
  public static func defaultAllocator() -> MPSImageAllocator { Allocator() }
  public func synchronize(on commandBuffer: MTLCommandBuffer) {}
  public func writeBytes(_ bytes: UnsafeRawPointer, dataLayout: MPSDataLayout, imageIndex: Int) {
    values = values.indices.map { place in
      switch featureChannelFormat {
      case .float32: return bytes.load(fromByteOffset: 4 * place, as: Float.self)
      case .float16: return Float(Float16(bitPattern: bytes.load(fromByteOffset: 2 * place, as: UInt16.self)))
      case .unorm8: return Float(bytes.load(fromByteOffset: place, as: UInt8.self)) / 255
      case .unorm16: return Float(bytes.load(fromByteOffset: 2 * place, as: UInt16.self)) / 65535
      }
    }
  }
  public func readBytes(_ bytes: UnsafeMutableRawPointer, dataLayout: MPSDataLayout, imageIndex: Int) {
    let count = shape.reduce(1, *)
    for (place, value) in values[(imageIndex * count)..<((imageIndex + 1) * count)].enumerated() {
      if featureChannelFormat == .float32 { bytes.storeBytes(of: value, toByteOffset: 4 * place, as: Float.self) }
      else { bytes.storeBytes(of: Float16(value).bitPattern, toByteOffset: 2 * place, as: UInt16.self) }
    }
  }
}

public class MPSState: NSObject {
  let forward: Entry
  var values: Entry = [:]
  init(_ forward: Entry) { self.forward = forward }
  public func synchronize(on commandBuffer: MTLCommandBuffer) {}
  func buffer(_ name: String) -> MTLBuffer {
    Buffer(((values[name] as! Entry)["numbers"] as! [Any]).map { Float(number($0)) })
  }
}
public class MPSNNGradientState: MPSState {}
public final class MPSCNNConvolutionGradientState: MPSNNGradientState {
  public var gradientForWeights: MTLBuffer { buffer("gradientForWeights") }
  public var gradientForBiases: MTLBuffer { buffer("gradientForBiases") }
}
public final class MPSCNNConvolutionWeightsAndBiasesState: MPSState {}
public final class MPSCNNInstanceNormalizationGradientState: MPSNNGradientState {
  public var gradientForGamma: MTLBuffer { buffer("gradientForGamma") }
  public var gradientForBeta: MTLBuffer { buffer("gradientForBeta") }
}
public final class MPSCNNGroupNormalizationGradientState: MPSNNGradientState {
  public var gradientForGamma: MTLBuffer { buffer("gradientForGamma") }
  public var gradientForBeta: MTLBuffer { buffer("gradientForBeta") }
}

// --- kernels ----------------------------------------------------------------------------------------------------------

public class MPSKernel: Noted {
  public var destinationImageAllocator: MPSImageAllocator = Allocator()
  /// The last encode.
  var encoded: Entry?
  var states: [String] { [] }

  override func shows(_ name: String) -> Any? {
    if let given = encoded {
      var case_ = given
      case_["shows"] = [name]
      return asked(case_)[name]
    }
    return asked(["kind": "object", "object": entry, "shows": [name], "classes": []])[name]
  }

  func encode(_ sources: [MPSImage], _ destination: MPSImage?) -> MPSImage {
    var given: Entry = ["kind": "kernel", "kernel": entry, "sources": sources.map(\.entry)]
    if let image = destination { given["destination"] = [image.width, image.height, image.featureChannels] }
    encoded = given
    given["read"] = ["result", "pixelFormat"]
    let found = asked(given), made = MPSImage(found["result"], pixelFormat: found["pixelFormat"])
    guard let image = destination else { return made }
    image.values = made.values
    return image
  }

  func state() -> MPSState {
    let name = String(describing: type(of: self)), given = encoded ?? [:]
    if name.hasPrefix("MPSCNNConvolution") || name == "MPSCNNFullyConnected" {
      return MPSCNNConvolutionGradientState(given)
    }
    if name == "MPSCNNInstanceNormalization" { return MPSCNNInstanceNormalizationGradientState(given) }
    if name == "MPSCNNGroupNormalization" { return MPSCNNGroupNormalizationGradientState(given) }
    return MPSNNGradientState(given)
  }
}

public class MPSCNNKernel: MPSKernel {
  public var offset: MPSOffset {
    let found = whole(shows("offset"))
    return MPSOffset(x: found[0], y: found[1], z: found[2])
  }
  public var padding: MPSNNDefaultPadding {
    get { MPSNNDefaultPadding(method: MPSNNPaddingMethod(rawValue: (shows("padding") as! NSNumber).uintValue)) }
    set { properties["padding"] = ["padding": newValue.named] }
  }
  public var clipRect: MTLRegion {
    get { fatalError() }
    set { properties["clipRect"] = region(newValue) }
  }
  public func encode(commandBuffer: MTLCommandBuffer, sourceImage: MPSImage, destinationImage: MPSImage) {
    _ = encode([sourceImage], destinationImage)
  }
  public func encode(
    commandBuffer: MTLCommandBuffer, sourceImage: MPSImage, destinationState: MPSState, destinationImage: MPSImage
  ) {
    _ = encode([sourceImage], destinationImage)
  }
  public func encode(commandBuffer: MTLCommandBuffer, sourceImage: MPSImage) -> MPSImage { encode([sourceImage], nil) }
  public func encode(
    commandBuffer: MTLCommandBuffer, sourceImage: MPSImage, destinationState: inout MPSState?,
    destinationStateIsTemporary: Bool
  ) -> MPSImage {
    let made = encode([sourceImage], nil)
    destinationState = state()
    return made
  }
  public func resultState(sourceImage: MPSImage, sourceStates: [MPSState]?, destinationImage: MPSImage) -> MPSState? {
    encoded = [
      "kind": "kernel", "kernel": entry, "sources": [sourceImage.entry],
      "destination": [destinationImage.width, destinationImage.height, destinationImage.featureChannels],
    ]
    return state()
  }
}

public class MPSCNNBinaryKernel: MPSKernel {
  public var padding: MPSNNDefaultPadding {
    get { fatalError() }
    set { properties["padding"] = ["padding": newValue.named] }
  }
  public func encode(commandBuffer: MTLCommandBuffer, primaryImage: MPSImage, secondaryImage: MPSImage) -> MPSImage {
    encode([primaryImage, secondaryImage], nil)
  }
  public func encode(
    commandBuffer: MTLCommandBuffer, primaryImage: MPSImage, secondaryImage: MPSImage,
    destinationState: inout MPSState?, destinationStateIsTemporary: Bool
  ) -> MPSImage {
    let made = encode([primaryImage, secondaryImage], nil)
    destinationState = state()
    return made
  }
}

public class MPSCNNGradientKernel: MPSCNNBinaryKernel {
  public func encode(
    commandBuffer: MTLCommandBuffer, sourceGradient: MPSImage, sourceImage: MPSImage, gradientState: MPSState
  ) -> MPSImage {
    var given = gradientState.forward
    let sources = (given["sources"] as! [Entry]).map { MPSImage($0) }
    let place = sources.firstIndex { $0.shape == sourceImage.shape && $0.values == sourceImage.values }
    given["gradients"] = [
      ["kernel": entry, "incoming": sourceGradient.entry, "secondary": place as Any? ?? "result"] as Entry
    ]
    let parameters =
      gradientState is MPSCNNConvolutionGradientState ? ["gradientForWeights", "gradientForBiases"]
      : type(of: gradientState) == MPSNNGradientState.self ? [] : ["gradientForGamma", "gradientForBeta"]
    given["read"] = ["gradients"] + parameters
    gradientState.values = asked(given)
    return MPSImage((gradientState.values["gradients"] as! [Any])[0])
  }
}

public class MPSNNReduceUnary: MPSCNNKernel {
  public var clipRectSource: MTLRegion {
    get { fatalError() }
    set { properties["clipRectSource"] = region(newValue) }
  }
}

public class MPSNNReduceBinary: MPSCNNBinaryKernel {
  public var primarySourceClipRect: MTLRegion {
    get { fatalError() }
    set { properties["primarySourceClipRect"] = region(newValue) }
  }
  public var secondarySourceClipRect: MTLRegion {
    get { fatalError() }
    set { properties["secondarySourceClipRect"] = region(newValue) }
  }
}

func region(_ given: MTLRegion) -> Entry {
  let (corner, size) = (given.origin, given.size)
  return ["region": [corner.x, corner.y, corner.z, size.width, size.height, size.depth]]
}

public protocol MPSNNPadding {}
public final class MPSNNDefaultPadding: NSObject, MPSNNPadding {
  let named: Any
  public init(method: MPSNNPaddingMethod) { named = Int(method.rawValue) }
  init(preset: String) { named = preset }
  public func paddingMethod() -> MPSNNPaddingMethod { MPSNNPaddingMethod(rawValue: UInt(named as! Int)) }
  public static func forTensorflowAveragePooling() -> MPSNNDefaultPadding {
    MPSNNDefaultPadding(preset: "paddingForTensorflowAveragePooling")
  }
  public static func forTensorflowAveragePoolingValidOnly() -> MPSNNDefaultPadding {
    MPSNNDefaultPadding(preset: "paddingForTensorflowAveragePoolingValidOnly")
  }
}

// --- what kernels are made with ---------------------------------------------------------------------------------------

public final class MPSNNNeuronDescriptor: Noted {
  public static func cnnNeuronDescriptor(with type: MPSCNNNeuronType, a: Float, b: Float, c: Float) -> MPSNNNeuronDescriptor {
    MPSNNNeuronDescriptor(["type": Int(type.rawValue), "a": Double(a), "b": Double(b), "c": Double(c)])
  }
  public static func cnnNeuronPReLUDescriptor(with data: Data, noCopy: Bool) -> MPSNNNeuronDescriptor {
    MPSNNNeuronDescriptor(["type": 10, "data": floats(data)])
  }
}

func floats(_ data: Data) -> Entry {
  let values = data.withUnsafeBytes { Array($0.bindMemory(to: Float.self)) }
  return array([values.count], values)
}

public class MPSCNNConvolutionDescriptor: Noted {
  public init(kernelWidth: Int, kernelHeight: Int, inputFeatureChannels: Int, outputFeatureChannels: Int) {
    super.init([
      "kernelWidth": kernelWidth, "kernelHeight": kernelHeight, "inputFeatureChannels": inputFeatureChannels,
      "outputFeatureChannels": outputFeatureChannels,
    ])
  }
  func size(_ name: String) -> Int { arguments[name] as! Int }
}
public final class MPSCNNDepthWiseConvolutionDescriptor: MPSCNNConvolutionDescriptor {}
public final class MPSCNNSubPixelConvolutionDescriptor: MPSCNNConvolutionDescriptor {}

public protocol MPSCNNConvolutionDataSource: NSObjectProtocol {
  func dataType() -> MPSDataType
  func descriptor() -> MPSCNNConvolutionDescriptor
  func weights() -> UnsafeMutableRawPointer
  func biasTerms() -> UnsafeMutablePointer<Float>?
  func load() -> Bool
  func purge()
  func update(
    with gradientState: MPSCNNConvolutionGradientState, sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> Bool
}

func entry(_ source: MPSCNNConvolutionDataSource) -> Entry {
  if source.dataType() == .uInt32 { return words(source) }
  let made = source.descriptor(), groups = (made.properties["groups"] as? NSNumber)?.intValue ?? 1
  let inputs = made is MPSCNNDepthWiseConvolutionDescriptor ? 1 : made.size("inputFeatureChannels") / groups
  let outputs = made.size("outputFeatureChannels")
  let shape = [outputs, made.size("kernelHeight"), made.size("kernelWidth"), inputs]
  let start = source.weights().assumingMemoryBound(to: Float.self)
  let values = Array(UnsafeBufferPointer(start: start, count: shape.reduce(1, *)))
  var found: Entry = ["descriptor": made.entry, "weights": array(shape, values)]
  if let biases = source.biasTerms() {
    found["biases"] = array([outputs], Array(UnsafeBufferPointer(start: biases, count: outputs)))
  }
  return found
}

/// Weights of one bit: each pixel of a filter has whole words.
func words(_ source: MPSCNNConvolutionDataSource) -> Entry {
  let made = source.descriptor(), count = (made.size("inputFeatureChannels") + 31) / 32
  let shape = [made.size("outputFeatureChannels"), made.size("kernelHeight"), made.size("kernelWidth"), count]
  let start = source.weights().assumingMemoryBound(to: UInt32.self)
  let flat = UnsafeBufferPointer(start: start, count: shape.reduce(1, *)).map { Int($0) }
  return ["descriptor": made.entry, "words": flat]
}

/// Terms of a binary convolution.
func row(_ start: UnsafePointer<Float>?, _ source: MPSCNNConvolutionDataSource, _ side: String) -> Entry? {
  let count = source.descriptor().size(side)
  return start.map { array([count], Array(UnsafeBufferPointer(start: $0, count: count))) }
}

// --- losses -----------------------------------------------------------------------------------------------------------

public final class MPSCNNLossDescriptor: Noted {
  public init(type: MPSCNNLossType, reductionType: MPSCNNReductionType) {
    super.init(["type": Int(type.rawValue), "reductionType": Int(reductionType.rawValue)])
  }
}

public final class MPSCNNYOLOLossDescriptor: Noted {
  private let made = (0..<4).map { _ in MPSCNNLossDescriptor(type: .meanAbsoluteError, reductionType: .none) }
  public var xyLossDescriptor: MPSCNNLossDescriptor { made[0] }
  public var whLossDescriptor: MPSCNNLossDescriptor { made[1] }
  public var confidenceLossDescriptor: MPSCNNLossDescriptor { made[2] }
  public var classesLossDescriptor: MPSCNNLossDescriptor { made[3] }
  public static func cnnLossDescriptor(
    withXYLossType xy: MPSCNNLossType, whLossType: MPSCNNLossType, confidenceLossType: MPSCNNLossType,
    classesLossType: MPSCNNLossType, reductionType: MPSCNNReductionType, anchorBoxes: Data, numberOfAnchorBoxes: Int
  ) -> MPSCNNYOLOLossDescriptor {
    var boxes = floats(anchorBoxes)
    boxes["shape"] = [numberOfAnchorBoxes, 2]
    return MPSCNNYOLOLossDescriptor([
      "XYLossType": Int(xy.rawValue), "WHLossType": Int(whLossType.rawValue),
      "confidenceLossType": Int(confidenceLossType.rawValue), "classesLossType": Int(classesLossType.rawValue),
      "reductionType": Int(reductionType.rawValue), "anchorBoxes": boxes,
    ])
  }
  override var set: Entry {
    var found = properties
    let parts = ["XYLossDescriptor", "WHLossDescriptor", "confidenceLossDescriptor", "classesLossDescriptor"]
    for (part, inner) in zip(parts, made) {
      for (name, value) in inner.properties { found["\(part).\(name)"] = value }
    }
    return found
  }
}

public final class MPSCNNLossDataDescriptor: NSObject {
  let entry: Entry
  public init?(data: Data, layout: MPSDataLayout, size: MTLSize) {
    var found = floats(data)
    found["shape"] = [size.height, size.width, size.depth]
    entry = found
  }
}

public final class MPSCNNLossLabels: MPSState {
  let labels: Entry, weights: Entry?, size: [Int]
  var loss: MPSImage?
  public init(
    device: MTLDevice, lossImageSize: MTLSize, labelsDescriptor: MPSCNNLossDataDescriptor,
    weightsDescriptor: MPSCNNLossDataDescriptor?
  ) {
    size = [lossImageSize.width, lossImageSize.height, lossImageSize.depth]
    (labels, weights) = (labelsDescriptor.entry, weightsDescriptor?.entry)
    super.init([:])
  }
  public func lossImage() -> MPSImage { loss! }
}

public class LabelledLoss: MPSCNNKernel {
  public func encode(commandBuffer: MTLCommandBuffer, sourceImage: MPSImage, labels: MPSCNNLossLabels) -> MPSImage {
    var given: Entry = ["kind": "kernel", "kernel": entry, "sources": [sourceImage.entry]]
    (given["labels"], given["lossImageSize"], given["labelWeights"]) = (labels.labels, labels.size, labels.weights)
    given["read"] = ["result", "loss"]
    let found = asked(given)
    labels.loss = MPSImage(found["loss"])
    return MPSImage(found["result"])
  }
}

func lost(_ kernel: MPSKernel, _ sources: [MPSImage], _ labels: [MPSImage], _ weights: [MPSImage]?) -> [MPSImage] {
  var given: Entry = ["kind": "kernel", "kernel": kernel.entry, "sources": sources.map(\.entry), "read": ["result"]]
  (given["labels"], given["labelWeights"]) = (labels[0].entry, weights?[0].entry)
  return [MPSImage(asked(given)["result"])]
}

public class ForwardLoss: MPSCNNKernel {
  public func encodeBatch(
    commandBuffer: MTLCommandBuffer, sourceImages: [MPSImage], labels: [MPSImage], weights: [MPSImage]?,
    outStates: UnsafeMutablePointer<[MPSState]?>?, isTemporary: Bool
  ) -> [MPSImage] { lost(self, sourceImages, labels, weights) }
}

public class LossGradient: MPSCNNBinaryKernel {
  public func encodeBatch(
    commandBuffer: MTLCommandBuffer, sourceGradients: [MPSImage], sourceImages: [MPSImage], labels: [MPSImage],
    weights: [MPSImage]?, sourceStates: [MPSState]?
  ) -> [MPSImage] { lost(self, sourceGradients + sourceImages, labels, weights) }
}

public protocol NormalizationSource: NSObjectProtocol {
  func gamma() -> UnsafeMutablePointer<Float>?
  func beta() -> UnsafeMutablePointer<Float>?
  func epsilon() -> Float
}
public protocol MPSCNNBatchNormalizationDataSource: NormalizationSource {
  func numberOfFeatureChannels() -> Int
  func mean() -> UnsafeMutablePointer<Float>?
  func variance() -> UnsafeMutablePointer<Float>?
}
public protocol MPSCNNInstanceNormalizationDataSource: NormalizationSource { var numberOfFeatureChannels: Int { get } }
public protocol MPSCNNGroupNormalizationDataSource: NormalizationSource {
  var numberOfFeatureChannels: Int { get }
  var numberOfGroups: Int { get set }
}

func rows(_ source: NormalizationSource, _ channels: Int, _ groups: Int = 1) -> Entry {
  func row(_ start: UnsafeMutablePointer<Float>?) -> Entry {
    array([channels], Array(UnsafeBufferPointer(start: start!, count: channels)))
  }
  var found: Entry = ["gamma": row(source.gamma()), "beta": row(source.beta()), "groups": groups]
  found["epsilon"] = Double(source.epsilon())
  if let batch = source as? MPSCNNBatchNormalizationDataSource {
    (found["mean"], found["variance"]) = (row(batch.mean()), row(batch.variance()))
  }
  return found
}

// --- graphs, matrices -------------------------------------------------------------------------------------------------

public protocol MPSHandle: NSObjectProtocol {
  func label() -> String?
}

public final class MPSNNImageNode: NSObject {
  let handle: MPSHandle?, filter: MPSNNFilterNode?
  public init(handle: MPSHandle) { (self.handle, filter) = (handle, nil) }
  init(of node: MPSNNFilterNode) { (handle, filter) = (nil, node) }
}

public class MPSNNFilterNode: Noted {
  public private(set) lazy var resultImage = MPSNNImageNode(of: self)
  var images: [String: [MPSNNImageNode]] = [:]
  var dataSource: MPSCNNConvolutionDataSource?
  init(_ arguments: Entry, images: [String: [MPSNNImageNode]]) {
    self.images = images
    super.init(arguments)
  }
}

extension MPSNNFilterNode {
  public func trainingGraph(withSourceGradient gradient: MPSNNImageNode?, nodeHandler: (() -> Void)?)
    -> [MPSNNFilterNode]?
  { [LastGradientNode([:], images: ["loss": [resultImage]])] }
}

/// The gradient node next to the source.
final class LastGradientNode: MPSNNFilterNode {}

public final class MPSNNConcatenationNode: MPSNNFilterNode {
  public init(sources: [MPSNNImageNode]) { super.init([:], images: ["sources": sources]) }
}

public final class MPSNNForwardLossNode: MPSNNFilterNode {
  public init(sources: [MPSNNImageNode], lossDescriptor: MPSCNNLossDescriptor) {
    super.init(["lossDescriptor": lossDescriptor.entry], images: ["sources": sources])
  }
}

public final class MPSCNNConvolutionGradientStateNode: NSObject {}

public final class MPSNNGraph: NSObject {
  public var format = MPSImageFeatureChannelFormat.float16
  public var destinationImageAllocator: MPSImageAllocator = Allocator()
  public var sourceStateHandles: [MPSHandle]? { [] }
  fileprivate var nodes: [Entry] = [], made: [MPSNNFilterNode] = []
  private var handles: [MPSHandle] = []

  public init?(device: MTLDevice, resultImage: MPSNNImageNode, resultImageIsNeeded: Bool) {
    super.init()
    let last = resultImage.filter!
    add(last is LastGradientNode ? last.images["loss"]![0].filter! : last)
  }

  /// The nodes that a filter needs, and itself behind them.
  private func add(_ node: MPSNNFilterNode) {
    if made.contains(where: { $0 === node }) { return }
    for each in node.images.sorted(by: { $0.key < $1.key }).flatMap(\.value) {
      if let filter = each.filter { add(filter) }
      else if !handles.contains(where: { $0 === each.handle! }) { handles.append(each.handle!) }
    }
    var entry = node.entry, arguments = node.arguments
    for (name, images) in node.images {
      let places = images.map(place)
      arguments[name] = name == "sources" ? places : places[0]
    }
    entry["arguments"] = arguments
    made.append(node)
    nodes.append(entry)
  }

  private func place(_ image: MPSNNImageNode) -> Entry {
    if let filter = image.filter { return ["node": made.firstIndex { $0 === filter }!] }
    return ["source": handles.firstIndex { $0 === image.handle! }!]
  }

  /// In the order that openmps gives them.
  public var sourceImageHandles: [MPSHandle] { handles }

  public func encode(to commandBuffer: MTLCommandBuffer, sourceImages: [MPSImage]) -> MPSImage? {
    let found = asked([
      "kind": "graph", "nodes": nodes, "format": Int(format.rawValue), "sources": sourceImages.map(\.entry),
      "read": ["result", "pixelFormat"],
    ])
    return MPSImage(found["result"], pixelFormat: found["pixelFormat"])
  }
}

/// Arrays of one shape as one of them all.
func stacked(_ entries: [Entry]) -> Entry {
  ["shape": [entries.count] + whole(entries[0]["shape"]), "numbers": entries.flatMap { $0["numbers"] as! [Any] }]
}

func unstacked(_ value: Any?) -> [MPSImage] {
  let found = value as! Entry, shape = whole(found["shape"]), all = found["numbers"] as! [Any]
  let one = Array(shape.dropFirst()), count = one.reduce(1, *)
  return (0..<shape[0]).map { MPSImage(["shape": one, "numbers": Array(all[($0 * count)..<(($0 + 1) * count)])]) }
}

extension MPSNNGraph {
  /// A training graph's: layers in the CPU's style are shown gradients when the command buffer has completed.
  public func encodeBatch(to commandBuffer: MTLCommandBuffer, sourceImages: [[MPSImage]], sourceStates: [[MPSState]]?)
    -> [MPSImage]?
  {
    let labels = sourceStates![0] as! [MPSCNNLossLabels], names = ["gradientForWeights", "gradientForBiases"]
    let found = asked([
      "kind": "training", "nodes": nodes, "format": Int(format.rawValue),
      "sources": sourceImages.map { stacked($0.map(\.entry)) }, "labels": stacked(labels.map(\.labels)),
      "lossImageSize": labels[0].size, "read": ["result", "loss"] + names,
    ])
    for (each, loss) in zip(labels, unstacked(found["loss"])) { each.loss = loss }
    let layers = made.filter { $0.dataSource != nil && ($0.properties["trainingStyle"] as? NSNumber)?.intValue == 1 }
    commandBuffer.addCompletedHandler { _ in
      for (place, layer) in layers.enumerated() {
        let state = MPSCNNConvolutionGradientState([:])
        for name in names { state.values[name] = (found[name] as! [Any])[place] }
        _ = layer.dataSource!.update(with: state, sourceState: MPSCNNConvolutionWeightsAndBiasesState([:]))
      }
    }
    return unstacked(found["result"])
  }
}

public final class MPSMatrixRandomDistributionDescriptor: Noted {
  let made: Entry?
  init(made: Entry?) {
    self.made = made
    super.init([:])
  }
  override func shows(_ name: String) -> Any? {
    let found = asked(["kind": "object", "object": made ?? entry, "shows": [name]])[name]
    return NSNumber(value: number(found))
  }
  public static func normalDistributionDescriptor(withMean mean: Float, standardDeviation: Float)
    -> MPSMatrixRandomDistributionDescriptor
  { .init(made: ["normal": [Double(mean), Double(standardDeviation)]]) }
  public static func `default`() -> MPSMatrixRandomDistributionDescriptor { .init(made: nil) }
  public static func uniformDistributionDescriptor(withMinimum minimum: Float, maximum: Float)
    -> MPSMatrixRandomDistributionDescriptor
  { .init(made: ["uniform": [Double(minimum), Double(maximum)]]) }
}

public final class MPSMatrixDescriptor: NSObject {
  let size: [Int], rowBytes: Int, kind: MPSDataType
  public init(rows: Int, columns: Int, rowBytes: Int, dataType: MPSDataType) {
    (size, self.rowBytes, kind) = ([rows, columns], rowBytes, dataType)
  }
  public static func rowBytes(forColumns columns: Int, dataType: MPSDataType) -> Int {
    whole(asked(["kind": "spacing", "dataType": Int(dataType.rawValue), "columns": [columns]])["rowBytes"])[0]
  }
}

public final class MPSMatrix: NSObject {
  let descriptor: MPSMatrixDescriptor
  public let data: MTLBuffer
  public var rowBytes: Int { descriptor.rowBytes }
  public init(device: MTLDevice, descriptor: MPSMatrixDescriptor) {
    self.descriptor = descriptor
    data = Buffer(Array(repeating: 0, count: descriptor.rowBytes * descriptor.size[0] / 4))
  }
  public init(buffer: MTLBuffer, descriptor: MPSMatrixDescriptor) { (data, self.descriptor) = (buffer, descriptor) }
  public func synchronize(on commandBuffer: MTLCommandBuffer) {}
  func offset(_ place: Int) -> Int {
    place / descriptor.size[1] * rowBytes + place % descriptor.size[1] * 4
  }
  var entry: Entry {
    array(descriptor.size, (0..<descriptor.size.reduce(1, *)).map {
      data.contents().load(fromByteOffset: offset($0), as: Float.self)
    })
  }
}

public class MatrixKernel: MPSKernel {
  /// Matrices are read and written when the command buffer runs.
  func encode(_ commandBuffer: MTLCommandBuffer, _ sources: [MPSMatrix], _ result: MPSMatrix) {
    commandBuffer.addCompletedHandler { [self] _ in
      let found = asked([
        "kind": "matrices", "kernel": entry, "sources": sources.map(\.entry), "matrix": result.descriptor.size,
        "initial": result.entry,
      ])["matrix"] as! Entry
      for (place, value) in (found["numbers"] as! [Any]).map(number).enumerated() {
        result.data.contents().storeBytes(of: Float(value), toByteOffset: result.offset(place), as: Float.self)
      }
    }
  }
}
public class MatrixProduct: MatrixKernel {
  public var leftMatrixOrigin: MTLOrigin { get { none } set { note("leftMatrixOrigin", newValue) } }
  public var rightMatrixOrigin: MTLOrigin { get { none } set { note("rightMatrixOrigin", newValue) } }
  public var resultMatrixOrigin: MTLOrigin { get { none } set { note("resultMatrixOrigin", newValue) } }
  private var none: MTLOrigin { MTLOrigin(x: 0, y: 0, z: 0) }
  private func note(_ name: String, _ value: MTLOrigin) {
    properties[name] = ["origin": [value.x, value.y, value.z]] as Entry
  }
  public func encode(
    commandBuffer: MTLCommandBuffer, leftMatrix: MPSMatrix, rightMatrix: MPSMatrix, resultMatrix: MPSMatrix
  ) { encode(commandBuffer, [leftMatrix, rightMatrix], resultMatrix) }
}
public class MatrixSolution: MatrixKernel {
  public func encode(
    commandBuffer: MTLCommandBuffer, sourceMatrix: MPSMatrix, rightHandSideMatrix: MPSMatrix, solutionMatrix: MPSMatrix
  ) { encode(commandBuffer, [sourceMatrix, rightHandSideMatrix], solutionMatrix) }
}
public class MPSMatrixSoftMax: MatrixKernel {
  public init(device: MTLDevice) { super.init([:]) }
  public func encode(commandBuffer: MTLCommandBuffer, inputMatrix: MPSMatrix, resultMatrix: MPSMatrix) {
    encode(commandBuffer, [inputMatrix], resultMatrix)
  }
}
public final class MPSMatrixLogSoftMax: MPSMatrixSoftMax {}
public class MPSMatrixSoftMaxGradient: MatrixKernel {
  public init(device: MTLDevice) { super.init([:]) }
  public func encode(
    to commandBuffer: MTLCommandBuffer, gradientMatrix: MPSMatrix, forwardOutputMatrix: MPSMatrix, resultMatrix: MPSMatrix
  ) { encode(commandBuffer, [gradientMatrix, forwardOutputMatrix], resultMatrix) }
}
public final class MPSMatrixLogSoftMaxGradient: MPSMatrixSoftMaxGradient {}

public final class MPSMatrixRandomPhilox: MPSKernel {
  public init(
    device: MTLDevice, destinationDataType: MPSDataType, seed: Int,
    distributionDescriptor: MPSMatrixRandomDistributionDescriptor
  ) {
    var given: Entry = ["destinationDataType": Int(destinationDataType.rawValue), "seed": seed]
    given["distributionDescriptor"] = distributionDescriptor.made
    super.init(given)
  }
  public func encode(commandBuffer: MTLCommandBuffer, destinationMatrix: MPSMatrix) {
    let size = destinationMatrix.descriptor.size
    let found = asked(["kind": "random", "kernel": entry, "matrix": size])["matrix"] as! Entry
    for (place, value) in (found["numbers"] as! [Any]).map(number).enumerated() {
      let start = destinationMatrix.data.contents() + place / size[1] * destinationMatrix.rowBytes + place % size[1] * 4
      if destinationMatrix.descriptor.kind == .uInt32 { start.storeBytes(of: UInt32(value), as: UInt32.self) }
      else { start.storeBytes(of: Float(value), as: Float.self) }
    }
  }
}

// --- key-value coding, which the host's Foundation has not ------------------------------------------------------------

extension NSObject {
  public func setValue(_ value: Any?, forKey name: String) { (self as! Noted).properties[name] = value }
  public func value(forKey name: String) -> Any? { (self as! Noted).shows(name) }
}
