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
      return try! JSONSerialization.jsonObject(with: found) as! Entry
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

public struct MPSOffset { public var x: Int, y: Int, z: Int }

public struct MPSImageCoordinate {
  public var x: Int, y: Int, channel: Int
  public init(x: Int, y: Int, channel: Int) { (self.x, self.y, self.channel) = (x, y, channel) }
}

public enum MPSDataLayout { case HeightxWidthxFeatureChannels }

public enum MPSImageFeatureChannelFormat: UInt { case unorm8 = 1, unorm16, float16, float32 }

public enum MPSDataType: UInt32 {
  case float32 = 0x1000_0020, float16 = 0x1000_0010, int8 = 0x2000_0008, int16 = 0x2000_0010, int32 = 0x2000_0020
  case uInt8 = 8, uInt16 = 16, uInt32 = 32
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
  var entry: Entry {
    var found: Entry = ["class": String(describing: type(of: self)), "arguments": arguments]
    if !properties.isEmpty { found["properties"] = properties }
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
  public var featureChannelFormat: MPSImageFeatureChannelFormat, pixelFormat = MTLPixelFormat(rawValue: 0)
  public init(device: MTLDevice, imageDescriptor: MPSImageDescriptor) {
    (shape, featureChannelFormat) = (imageDescriptor.size, imageDescriptor.format)
    values = Array(repeating: 0, count: shape.reduce(1, *))
  }
  init(_ found: Any?, pixelFormat code: Any? = nil) {
    let found = found as! Entry
    shape = whole(found["shape"])
    values = (found["numbers"] as! [Any]).map { Float(number($0)) }
    featureChannelFormat = .float32
    if let code = code as? NSNumber {
      pixelFormat = MTLPixelFormat(rawValue: code.uintValue)
      if [25, 65, 115].contains(code.intValue) { featureChannelFormat = .float16 }
    }
  }
  public var height: Int { shape[0] }
  public var width: Int { shape[1] }
  public var featureChannels: Int { shape[2] }
  var entry: Entry { array(shape, values) }
  public static func defaultAllocator() -> MPSImageAllocator { Allocator() }
  public func synchronize(on commandBuffer: MTLCommandBuffer) {}
  public func writeBytes(_ bytes: UnsafeRawPointer, dataLayout: MPSDataLayout, imageIndex: Int) {
    values = Array(UnsafeBufferPointer(start: bytes.assumingMemoryBound(to: Float.self), count: values.count))
  }
  public func readBytes(_ bytes: UnsafeMutableRawPointer, dataLayout: MPSDataLayout, imageIndex: Int) {
    for (place, value) in values.enumerated() {
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
      return name.contains("Transpose") ? MPSNNGradientState(given) : MPSCNNConvolutionGradientState(given)
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
}

func entry(_ source: MPSCNNConvolutionDataSource) -> Entry {
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
  init(_ arguments: Entry, images: [String: [MPSNNImageNode]]) {
    self.images = images
    super.init(arguments)
  }
}

public final class MPSNNConcatenationNode: MPSNNFilterNode {
  public init(sources: [MPSNNImageNode]) { super.init([:], images: ["sources": sources]) }
}

public final class MPSNNGraph: NSObject {
  public var format = MPSImageFeatureChannelFormat.float16
  public var destinationImageAllocator: MPSImageAllocator = Allocator()
  public var sourceStateHandles: [MPSHandle]? { [] }
  private var nodes: [Entry] = [], made: [MPSNNFilterNode] = [], handles: [MPSHandle] = []

  public init?(device: MTLDevice, resultImage: MPSNNImageNode, resultImageIsNeeded: Bool) {
    super.init()
    add(resultImage.filter!)
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

public final class MPSMatrixRandomDistributionDescriptor: NSObject {
  let entry: Entry?
  init(_ entry: Entry?) { self.entry = entry }
  public static func `default`() -> MPSMatrixRandomDistributionDescriptor { .init(nil) }
  public static func uniformDistributionDescriptor(withMinimum minimum: Float, maximum: Float)
    -> MPSMatrixRandomDistributionDescriptor
  { .init(["uniform": [Double(minimum), Double(maximum)]]) }
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
  public func synchronize(on commandBuffer: MTLCommandBuffer) {}
}

public final class MPSMatrixRandomPhilox: MPSKernel {
  public init(
    device: MTLDevice, destinationDataType: MPSDataType, seed: Int,
    distributionDescriptor: MPSMatrixRandomDistributionDescriptor
  ) {
    var given: Entry = ["destinationDataType": Int(destinationDataType.rawValue), "seed": seed]
    given["distributionDescriptor"] = distributionDescriptor.entry
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
