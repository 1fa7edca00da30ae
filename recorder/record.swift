// Records what Metal Performance Shaders of this Mac answers to the list of cases of openmps.
//
//   swift recorder/record.swift [--list cases.json] [--out goldens]
//
// Each case runs in a process of its own, for the framework ends a process that misuses it, and how it ended is an
// answer, too. Written is OUT/<system>-<gpu>/recording.json for each GPU: raw numbers, the machine, the classes that
// have answered. Before anything is written, controls must have the answers that are known, and planted faults be seen.

import Foundation
import Metal
import MetalPerformanceShaders

// --- JSON -------------------------------------------------------------------------------------------------------------

enum JSON: Codable, Sendable, Equatable {
  case null, bool(Bool), int(Int), double(Double), text(String), list([JSON]), object([String: JSON])

  init(from decoder: Decoder) throws {
    let one = try decoder.singleValueContainer()
    if one.decodeNil() { self = .null }
    else if let value = try? one.decode(Bool.self) { self = .bool(value) }
    else if let value = try? one.decode(Int.self) { self = .int(value) }
    else if let value = try? one.decode(Double.self) { self = .double(value) }
    else if let value = try? one.decode(String.self) { self = .text(value) }
    else if let value = try? one.decode([JSON].self) { self = .list(value) }
    else { self = .object(try one.decode([String: JSON].self)) }
  }

  func encode(to encoder: Encoder) throws {
    var one = encoder.singleValueContainer()
    switch self {
    case .null: try one.encodeNil()
    case .bool(let value): try one.encode(value)
    case .int(let value): try one.encode(value)
    case .double(let value): try one.encode(value)
    case .text(let value): try one.encode(value)
    case .list(let value): try one.encode(value)
    case .object(let value): try one.encode(value)
    }
  }

  subscript(_ name: String) -> JSON? {
    if case .object(let all) = self { return all[name] }
    return nil
  }

  var list: [JSON]? { if case .list(let all) = self { return all } else { return nil } }
  var names: [String: JSON] { if case .object(let all) = self { return all } else { return [:] } }
  var text: String? { if case .text(let value) = self { return value } else { return nil } }
  var int: Int? { if case .int(let value) = self { return value } else { return nil } }
  var number: Double? {
    switch self {
    case .int(let value): return Double(value)
    case .double(let value): return value
    case .text("nan"): return .nan
    case .text("inf"): return .infinity
    case .text("-inf"): return -.infinity
    default: return nil
    }
  }
  /// The whole numbers of lists in lists.
  var flat: [Int] { list?.flatMap(\.flat) ?? int.map { [$0] } ?? [] }
  /// As key-value coding takes it.
  var boxed: NSNumber? {
    if case .bool(let value) = self { return NSNumber(value: value) }
    if case .int(let value) = self { return NSNumber(value: value) }
    return number.map { NSNumber(value: $0) }
  }

  static func of(_ value: Double) -> JSON {
    value.isNaN ? .text("nan") : value.isFinite ? .double(value) : .text(value > 0 ? "inf" : "-inf")
  }
  static func of(_ shape: [Int], _ numbers: [Float]) -> JSON {
    .object(["shape": .list(shape.map { .int($0) }), "numbers": .list(numbers.map { .of(Double($0)) })])
  }
  static func of(_ whole: [Int]) -> JSON { .list(whole.map { .int($0) }) }
}

/// A word of the list that this recorder does not know.
struct Unsupported: Error { let why: String }

func read(_ path: String) throws -> JSON {
  try JSONDecoder().decode(JSON.self, from: Data(contentsOf: URL(fileURLWithPath: path)))
}

func write(_ value: JSON, _ path: String) throws {
  let encoder = JSONEncoder()
  encoder.outputFormatting = [.sortedKeys]
  try encoder.encode(value).write(to: URL(fileURLWithPath: path), options: .atomic)
}

// --- values -----------------------------------------------------------------------------------------------------------

struct Numbers {
  let shape: [Int], values: [Float]

  init(_ given: JSON, shape known: [Int]? = nil) throws {
    guard let shape = known ?? given["shape"]?.list?.compactMap(\.int) else { throw Unsupported(why: "an array") }
    self.shape = shape
    if let listed = given["numbers"]?.list {
      values = listed.map { Float($0.number ?? .nan) }
    } else {
      guard let seed = given["seed"]?.int, let first = given["first"]?.int, let over = given["over"]?.int else {
        throw Unsupported(why: "an array")
      }
      values = (0..<shape.reduce(1, *)).map { place in
        let base = (seed + place) % 1013
        return Float(Double(base * base * base % 1013 + first) / Double(over))
      }
    }
  }
}

/// Data sources of a graph's convolutions, in the order of its nodes.
final class Layers { var sources: [Weights] = [] }

/// The arguments of an initializer by their names.
struct Arguments {
  let all: [String: JSON], device: MTLDevice
  var layers: Layers? = nil

  func json(_ name: String) throws -> JSON {
    guard let found = all[name] else { throw Unsupported(why: "an initializer without \(name)") }
    return found
  }
  func int(_ name: String) throws -> Int {
    guard let found = try json(name).int else { throw Unsupported(why: "a \(name) that is no whole number") }
    return found
  }
  func float(_ name: String) throws -> Float {
    guard let found = try json(name).number else { throw Unsupported(why: "a \(name) that is no number") }
    return Float(found)
  }
  func flag(_ name: String) throws -> Bool { try json(name) == .bool(true) }
  func ints(_ name: String, in form: String) throws -> [Int] {
    guard let found = try json(name)[form]?.list?.compactMap(\.int), found.count == 3 else {
      throw Unsupported(why: "a \(name) that is no \(form)")
    }
    return found
  }
  /// Listed numbers, in memory that stays.
  func row(_ name: String) throws -> UnsafePointer<Float> {
    UnsafePointer(kept((try json(name).list ?? []).map { Float($0.number ?? .nan) }))
  }
  func size(_ name: String) throws -> MTLSize {
    let found = try ints(name, in: "size")
    return MTLSize(width: found[0], height: found[1], depth: found[2])
  }
  func coordinate(_ name: String) throws -> MPSImageCoordinate {
    let found = try ints(name, in: "coordinate")
    return MPSImageCoordinate(x: found[0], y: found[1], channel: found[2])
  }
  func weights(_ name: String = "weights") throws -> Weights {
    let made = try Weights(try json(name), device)
    layers?.sources.append(made)
    return made
  }
  func neuron(_ name: String = "neuronDescriptor") throws -> MPSNNNeuronDescriptor { try neuronOf(try json(name)) }
}

func neuronOf(_ given: JSON) throws -> MPSNNNeuronDescriptor {
  let arguments = given["arguments"] ?? .null
  let code = arguments["type"]?.int ?? 0
  guard let type = MPSCNNNeuronType(rawValue: numericCast(code)) else { throw Unsupported(why: "neuron \(code)") }
  if let data = arguments["data"] {
    let values = try Numbers(data).values
    return MPSNNNeuronDescriptor.cnnNeuronPReLUDescriptor(
      with: values.withUnsafeBytes { Data($0) }, noCopy: false)
  }
  let numbers = ["a", "b", "c"].map { Float(arguments[$0]?.number ?? 0) }
  return MPSNNNeuronDescriptor.cnnNeuronDescriptor(with: type, a: numbers[0], b: numbers[1], c: numbers[2])
}

func paddingOf(_ given: JSON) throws -> MPSNNDefaultPadding {
  switch given["padding"] {
  case .int(let method): return MPSNNDefaultPadding(method: MPSNNPaddingMethod(rawValue: numericCast(method)))
  case .text("paddingForTensorflowAveragePooling"): return MPSNNDefaultPadding.forTensorflowAveragePooling()
  case .text("paddingForTensorflowAveragePoolingValidOnly"):
    return MPSNNDefaultPadding.forTensorflowAveragePoolingValidOnly()
  default: throw Unsupported(why: "a padding policy")
  }
}

func regionOf(_ given: JSON) throws -> MTLRegion {
  guard let numbers = given["region"]?.list?.compactMap(\.int), numbers.count == 6 else {
    throw Unsupported(why: "a region")
  }
  return MTLRegion(
    origin: MTLOrigin(x: numbers[0], y: numbers[1], z: numbers[2]),
    size: MTLSize(width: numbers[3], height: numbers[4], depth: numbers[5]))
}

// --- data sources -----------------------------------------------------------------------------------------------------

/// Memory that lives as long as the process.
func kept<Number>(_ values: [Number]) -> UnsafeMutablePointer<Number> {
  let memory = UnsafeMutablePointer<Number>.allocate(capacity: max(values.count, 1))
  memory.initialize(from: values, count: values.count)
  return memory
}

final class Weights: NSObject, MPSCNNConvolutionDataSource {
  private let made: MPSCNNConvolutionDescriptor, kind: MPSDataType
  private let numbers: UnsafeMutableRawPointer, biases: UnsafeMutablePointer<Float>?
  /// The state that a training graph in the CPU's style has shown.
  private(set) var shown: MPSCNNConvolutionGradientState?

  init(_ given: JSON, _ device: MTLDevice) throws {
    guard let descriptor = given["descriptor"] else { throw Unsupported(why: "weights without a descriptor") }
    let arguments = Arguments(all: descriptor["arguments"]?.names ?? [:], device: device)
    let sizes = try ["kernelWidth", "kernelHeight", "inputFeatureChannels", "outputFeatureChannels"].map(arguments.int)
    switch descriptor["class"]?.text {
    case "MPSCNNConvolutionDescriptor":
      made = MPSCNNConvolutionDescriptor(
        kernelWidth: sizes[0], kernelHeight: sizes[1], inputFeatureChannels: sizes[2], outputFeatureChannels: sizes[3])
    case "MPSCNNDepthWiseConvolutionDescriptor":
      made = MPSCNNDepthWiseConvolutionDescriptor(
        kernelWidth: sizes[0], kernelHeight: sizes[1], inputFeatureChannels: sizes[2], outputFeatureChannels: sizes[3])
    case "MPSCNNSubPixelConvolutionDescriptor":
      made = MPSCNNSubPixelConvolutionDescriptor(
        kernelWidth: sizes[0], kernelHeight: sizes[1], inputFeatureChannels: sizes[2], outputFeatureChannels: sizes[3])
    default: throw Unsupported(why: "a convolution descriptor")
    }
    for (name, value) in descriptor["properties"]?.names ?? [:] { try set(made, name, value) }
    if let words = given["words"] {
      kind = .uInt32
      numbers = UnsafeMutableRawPointer(kept(words.flat.map { UInt32($0) }))
    } else {
      kind = .float32
      numbers = UnsafeMutableRawPointer(kept(try Numbers(given["weights"] ?? .null).values))
    }
    biases = try given["biases"].map { kept(try Numbers($0).values) }
  }

  func dataType() -> MPSDataType { kind }
  func descriptor() -> MPSCNNConvolutionDescriptor { made }
  func update(
    with gradientState: MPSCNNConvolutionGradientState, sourceState: MPSCNNConvolutionWeightsAndBiasesState
  ) -> Bool {
    shown = gradientState
    return true
  }
  func weights() -> UnsafeMutableRawPointer { numbers }
  func biasTerms() -> UnsafeMutablePointer<Float>? { biases }
  func load() -> Bool { true }
  func purge() {}
  func label() -> String? { nil }
  func copy(with zone: NSZone? = nil) -> Any { self }
}

class Rows: NSObject {
  let rows: [String: UnsafeMutablePointer<Float>], channels: Int, small: Float, groups: Int

  init(_ given: JSON) throws {
    var found: [String: UnsafeMutablePointer<Float>] = [:]
    for name in ["gamma", "beta", "mean", "variance"] {
      if let row = given[name] { found[name] = kept(try Numbers(row).values) }
    }
    (rows, channels) = (found, try Numbers(given["gamma"] ?? .null).values.count)
    small = Float(given["epsilon"]?.number ?? 0)
    groups = given["groups"]?.int ?? 1
  }

  required init?(coder: NSCoder) { return nil }
  @objc(supportsSecureCoding) class var supportsSecureCoding: Bool { true }
  @objc(encodeWithCoder:) func encode(with coder: NSCoder) {}
  @objc(gamma) func gamma() -> UnsafeMutablePointer<Float>? { rows["gamma"] }
  @objc(beta) func beta() -> UnsafeMutablePointer<Float>? { rows["beta"] }
  @objc(epsilon) func epsilon() -> Float { small }
  @objc(load) func load() -> Bool { true }
  @objc(purge) func purge() {}
  @objc(label) func label() -> String? { nil }
  @objc(copyWithZone:) func copy(with zone: NSZone? = nil) -> Any { self }
}

final class BatchRows: Rows, MPSCNNBatchNormalizationDataSource {
  func numberOfFeatureChannels() -> Int { channels }
  func mean() -> UnsafeMutablePointer<Float>? { rows["mean"] }
  func variance() -> UnsafeMutablePointer<Float>? { rows["variance"] }
}

final class GroupRows: Rows, MPSCNNInstanceNormalizationDataSource, MPSCNNGroupNormalizationDataSource {
  var numberOfFeatureChannels: Int { channels }
  var numberOfGroups: Int {
    get { groups }
    set {}
  }
}

// --- objects ----------------------------------------------------------------------------------------------------------

/// A kernel of a class by its arguments.
func kernelOf(_ name: String, _ a: Arguments) throws -> MPSKernel {
  if let found = plain(name, a.device) { return found }
  for make in [windowed, layered, neuron, resampling, binary, losing, filtering, measuring] {
    if let found = try make(name, a) { return found }
  }
  throw Unsupported(why: "the class \(name)")
}

/// Kernels of a device alone.
func plain(_ name: String, _ device: MTLDevice) -> MPSKernel? {
  switch name {
  case "MPSCNNSoftMax": return MPSCNNSoftMax(device: device)
  case "MPSCNNLogSoftMax": return MPSCNNLogSoftMax(device: device)
  case "MPSCNNSoftMaxGradient": return MPSCNNSoftMaxGradient(device: device)
  case "MPSCNNLogSoftMaxGradient": return MPSCNNLogSoftMaxGradient(device: device)
  case "MPSCNNAdd": return MPSCNNAdd(device: device)
  case "MPSCNNSubtract": return MPSCNNSubtract(device: device)
  case "MPSCNNMultiply": return MPSCNNMultiply(device: device)
  case "MPSCNNDivide": return MPSCNNDivide(device: device)
  case "MPSNNCompare": return MPSNNCompare(device: device)
  case "MPSNNReshape": return MPSNNReshape(device: device)
  case "MPSNNReshapeGradient": return MPSNNReshapeGradient(device: device)
  case "MPSNNSlice": return MPSNNSlice(device: device)
  case "MPSNNGridSample": return MPSNNGridSample(device: device)
  case "MPSNNInitialGradient": return MPSNNInitialGradient(device: device)
  case "MPSNNReduceRowMin": return MPSNNReduceRowMin(device: device)
  case "MPSNNReduceRowMax": return MPSNNReduceRowMax(device: device)
  case "MPSNNReduceRowMean": return MPSNNReduceRowMean(device: device)
  case "MPSNNReduceRowSum": return MPSNNReduceRowSum(device: device)
  case "MPSNNReduceColumnMin": return MPSNNReduceColumnMin(device: device)
  case "MPSNNReduceColumnMax": return MPSNNReduceColumnMax(device: device)
  case "MPSNNReduceColumnMean": return MPSNNReduceColumnMean(device: device)
  case "MPSNNReduceColumnSum": return MPSNNReduceColumnSum(device: device)
  case "MPSNNReduceFeatureChannelsMin": return MPSNNReduceFeatureChannelsMin(device: device)
  case "MPSNNReduceFeatureChannelsMax": return MPSNNReduceFeatureChannelsMax(device: device)
  case "MPSNNReduceFeatureChannelsMean": return MPSNNReduceFeatureChannelsMean(device: device)
  case "MPSNNReduceFeatureChannelsSum": return MPSNNReduceFeatureChannelsSum(device: device)
  case "MPSNNReduceFeatureChannelsArgumentMin": return MPSNNReduceFeatureChannelsArgumentMin(device: device)
  case "MPSNNReduceFeatureChannelsArgumentMax": return MPSNNReduceFeatureChannelsArgumentMax(device: device)
  case "MPSNNReduceFeatureChannelsAndWeightsMean": return MPSNNReduceFeatureChannelsAndWeightsMean(device: device)
  case "MPSCNNInstanceNormalizationGradient": return MPSCNNInstanceNormalizationGradient(device: device)
  case "MPSCNNGroupNormalizationGradient": return MPSCNNGroupNormalizationGradient(device: device)
  default: return nil
  }
}

/// Kernels with a window.
func windowed(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  func size() throws -> (Int, Int) { (try a.int("kernelWidth"), try a.int("kernelHeight")) }
  func stride() throws -> (Int, Int) {
    a.all["strideInPixelsX"] == nil ? (1, 1) : (try a.int("strideInPixelsX"), try a.int("strideInPixelsY"))
  }
  func pooling<Kernel: MPSKernel>(_ make: (MTLDevice, Int, Int, Int, Int) -> Kernel) throws -> Kernel {
    let ((width, height), (x, y)) = (try size(), try stride())
    return make(a.device, width, height, x, y)
  }
  func dilation() throws -> (Int, Int) { (try a.int("dilationRateX"), try a.int("dilationRateY")) }
  switch name {
  case "MPSCNNPoolingMax":
    return try pooling(MPSCNNPoolingMax.init(device:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:))
  case "MPSCNNPoolingAverage":
    return try pooling(MPSCNNPoolingAverage.init(device:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:))
  case "MPSCNNPoolingL2Norm":
    return try pooling(MPSCNNPoolingL2Norm.init(device:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:))
  case "MPSCNNPoolingMaxGradient":
    return try pooling(MPSCNNPoolingMaxGradient.init(device:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:))
  case "MPSCNNPoolingAverageGradient":
    return try pooling(
      MPSCNNPoolingAverageGradient.init(device:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:))
  case "MPSCNNPoolingL2NormGradient":
    return try pooling(
      MPSCNNPoolingL2NormGradient.init(device:kernelWidth:kernelHeight:strideInPixelsX:strideInPixelsY:))
  case "MPSCNNDilatedPoolingMax":
    let ((width, height), (x, y), (dx, dy)) = (try size(), try stride(), try dilation())
    return MPSCNNDilatedPoolingMax(
      device: a.device, kernelWidth: width, kernelHeight: height, dilationRateX: dx, dilationRateY: dy,
      strideInPixelsX: x, strideInPixelsY: y)
  case "MPSCNNDilatedPoolingMaxGradient":
    let ((width, height), (x, y), (dx, dy)) = (try size(), try stride(), try dilation())
    return MPSCNNDilatedPoolingMaxGradient(
      device: a.device, kernelWidth: width, kernelHeight: height, dilationRateX: dx, dilationRateY: dy,
      strideInPixelsX: x, strideInPixelsY: y)
  case "MPSCNNSpatialNormalization":
    return MPSCNNSpatialNormalization(device: a.device, kernelWidth: try size().0, kernelHeight: try size().1)
  case "MPSCNNSpatialNormalizationGradient":
    return MPSCNNSpatialNormalizationGradient(device: a.device, kernelWidth: try size().0, kernelHeight: try size().1)
  case "MPSCNNLocalContrastNormalization":
    return MPSCNNLocalContrastNormalization(device: a.device, kernelWidth: try size().0, kernelHeight: try size().1)
  case "MPSCNNLocalContrastNormalizationGradient":
    return MPSCNNLocalContrastNormalizationGradient(
      device: a.device, kernelWidth: try size().0, kernelHeight: try size().1)
  case "MPSCNNCrossChannelNormalization":
    return MPSCNNCrossChannelNormalization(device: a.device, kernelSize: try a.int("kernelSize"))
  case "MPSCNNCrossChannelNormalizationGradient":
    return MPSCNNCrossChannelNormalizationGradient(device: a.device, kernelSize: try a.int("kernelSize"))
  default: return nil
  }
}

/// Kernels with a data source, and the rest that take numbers.
func layered(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  switch name {
  case "MPSCNNConvolution": return MPSCNNConvolution(device: a.device, weights: try a.weights())
  case "MPSCNNConvolutionGradient": return MPSCNNConvolutionGradient(device: a.device, weights: try a.weights())
  case "MPSCNNFullyConnected": return MPSCNNFullyConnected(device: a.device, weights: try a.weights())
  case "MPSCNNFullyConnectedGradient": return MPSCNNFullyConnectedGradient(device: a.device, weights: try a.weights())
  case "MPSCNNConvolutionTranspose": return MPSCNNConvolutionTranspose(device: a.device, weights: try a.weights())
  case "MPSCNNConvolutionTransposeGradient":
    return MPSCNNConvolutionTransposeGradient(device: a.device, weights: try a.weights())
  case "MPSCNNBatchNormalization":
    let rows = try BatchRows(try a.json("dataSource"))
    let fused = a.all["fusedNeuronDescriptor"] == nil ? nil : try a.neuron("fusedNeuronDescriptor")
    return MPSCNNBatchNormalization(device: a.device, dataSource: rows, fusedNeuronDescriptor: fused)
  case "MPSCNNInstanceNormalization":
    return MPSCNNInstanceNormalization(device: a.device, dataSource: try GroupRows(try a.json("dataSource")))
  case "MPSCNNGroupNormalization":
    return MPSCNNGroupNormalization(device: a.device, dataSource: try GroupRows(try a.json("dataSource")))
  case "MPSCNNDropout":
    return MPSCNNDropout(
      device: a.device, keepProbability: try a.float("keepProbability"), seed: try a.int("seed"),
      maskStrideInPixels: try a.size("maskStrideInPixels"))
  case "MPSCNNDropoutGradient":
    return MPSCNNDropoutGradient(
      device: a.device, keepProbability: try a.float("keepProbability"), seed: try a.int("seed"),
      maskStrideInPixels: try a.size("maskStrideInPixels"))
  case "MPSCNNAddGradient":
    return MPSCNNAddGradient(device: a.device, isSecondarySourceFilter: try a.flag("isSecondarySourceFilter"))
  case "MPSCNNSubtractGradient":
    return MPSCNNSubtractGradient(device: a.device, isSecondarySourceFilter: try a.flag("isSecondarySourceFilter"))
  case "MPSCNNMultiplyGradient":
    return MPSCNNMultiplyGradient(device: a.device, isSecondarySourceFilter: try a.flag("isSecondarySourceFilter"))
  case "MPSNNReduceFeatureChannelsAndWeightsSum":
    let name = "doWeightedSumByNonZeroWeights"
    return MPSNNReduceFeatureChannelsAndWeightsSum(
      device: a.device, doWeightedSumByNonZeroWeights: a.all[name] == nil ? false : try a.flag(name))
  case "MPSNNPad":
    let fill = try a.all["fillValueArray"].map { try Numbers($0).values }
    return MPSNNPad(
      device: a.device, paddingSizeBefore: try a.coordinate("paddingSizeBefore"),
      paddingSizeAfter: try a.coordinate("paddingSizeAfter"), fillValueArray: fill?.withUnsafeBytes { Data($0) })
  case "MPSNNPadGradient": return MPSNNPadGradient(device: a.device)
  case "MPSNNGramMatrixCalculation":
    return MPSNNGramMatrixCalculation(device: a.device, alpha: try a.float("alpha"))
  case "MPSNNGramMatrixCalculationGradient":
    return MPSNNGramMatrixCalculationGradient(device: a.device, alpha: try a.float("alpha"))
  default: return nil
  }
}

/// Neurons, by a descriptor or by their classes.
func neuron(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  let device = a.device
  switch name {
  case "MPSCNNNeuron": return MPSCNNNeuron(device: device, neuronDescriptor: try a.neuron())
  case "MPSCNNNeuronGradient": return MPSCNNNeuronGradient(device: device, neuronDescriptor: try a.neuron())
  case "MPSCNNNeuronAbsolute": return MPSCNNNeuronAbsolute(device: device)
  case "MPSCNNNeuronSigmoid": return MPSCNNNeuronSigmoid(device: device)
  case "MPSCNNNeuronSoftSign": return MPSCNNNeuronSoftSign(device: device)
  case "MPSCNNNeuronReLU": return MPSCNNNeuronReLU(device: device, a: try a.float("a"))
  case "MPSCNNNeuronELU": return MPSCNNNeuronELU(device: device, a: try a.float("a"))
  case "MPSCNNNeuronLinear": return MPSCNNNeuronLinear(device: device, a: try a.float("a"), b: try a.float("b"))
  case "MPSCNNNeuronHardSigmoid":
    return MPSCNNNeuronHardSigmoid(device: device, a: try a.float("a"), b: try a.float("b"))
  case "MPSCNNNeuronTanH": return MPSCNNNeuronTanH(device: device, a: try a.float("a"), b: try a.float("b"))
  case "MPSCNNNeuronSoftPlus": return MPSCNNNeuronSoftPlus(device: device, a: try a.float("a"), b: try a.float("b"))
  case "MPSCNNNeuronReLUN": return MPSCNNNeuronReLUN(device: device, a: try a.float("a"), b: try a.float("b"))
  case "MPSCNNNeuronPower":
    return MPSCNNNeuronPower(device: device, a: try a.float("a"), b: try a.float("b"), c: try a.float("c"))
  case "MPSCNNNeuronExponential":
    return MPSCNNNeuronExponential(device: device, a: try a.float("a"), b: try a.float("b"), c: try a.float("c"))
  case "MPSCNNNeuronLogarithm":
    return MPSCNNNeuronLogarithm(device: device, a: try a.float("a"), b: try a.float("b"), c: try a.float("c"))
  case "MPSCNNNeuronPReLU":
    let values = try Numbers(try a.json("a")).values
    return MPSCNNNeuronPReLU(device: device, a: kept(values), count: values.count)
  default: return nil
  }
}

func resampling(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  func factors() throws -> (Int, Int) { (try a.int("integerScaleFactorX"), try a.int("integerScaleFactorY")) }
  func corners() throws -> Bool { a.all["alignCorners"] == nil ? false : try a.flag("alignCorners") }
  switch name {
  case "MPSCNNUpsamplingNearest":
    let (x, y) = try factors()
    return MPSCNNUpsamplingNearest(device: a.device, integerScaleFactorX: x, integerScaleFactorY: y)
  case "MPSCNNUpsamplingNearestGradient":
    let (x, y) = try factors()
    return MPSCNNUpsamplingNearestGradient(device: a.device, integerScaleFactorX: x, integerScaleFactorY: y)
  case "MPSCNNUpsamplingBilinear":
    let (x, y) = try factors()
    return MPSCNNUpsamplingBilinear(
      device: a.device, integerScaleFactorX: x, integerScaleFactorY: y, alignCorners: try corners())
  case "MPSCNNUpsamplingBilinearGradient":
    let (x, y) = try factors()
    return MPSCNNUpsamplingBilinearGradient(device: a.device, integerScaleFactorX: x, integerScaleFactorY: y)
  case "MPSNNResizeBilinear":
    return MPSNNResizeBilinear(
      device: a.device, resizeWidth: try a.int("resizeWidth"), resizeHeight: try a.int("resizeHeight"),
      alignCorners: try corners())
  case "MPSNNCropAndResizeBilinear":
    let parts: [MPSRegion] = try (try a.json("regions").list ?? []).map { part in
      guard let numbers = part["part"]?.list?.compactMap(\.number), numbers.count == 4 else {
        throw Unsupported(why: "a region")
      }
      return MPSRegion(
        origin: MPSOrigin(x: numbers[0], y: numbers[1], z: 0),
        size: MPSSize(width: numbers[2], height: numbers[3], depth: 1))
    }
    return MPSNNCropAndResizeBilinear(
      device: a.device, resizeWidth: try a.int("resizeWidth"), resizeHeight: try a.int("resizeHeight"),
      numberOfRegions: parts.count, regions: kept(parts))
  case "MPSNNLocalCorrelation":
    return MPSNNLocalCorrelation(
      device: a.device, windowInX: try a.int("windowInX"), windowInY: try a.int("windowInY"),
      strideInX: try a.int("strideInX"), strideInY: try a.int("strideInY"))
  default: return nil
  }
}

/// Image filters of a device alone, and those with a window.
func filtering(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  func size() throws -> (Int, Int) { (try a.int("kernelWidth"), try a.int("kernelHeight")) }
  switch name {
  case "MPSImageBox":
    return MPSImageBox(device: a.device, kernelWidth: try size().0, kernelHeight: try size().1)
  case "MPSImageTent":
    return MPSImageTent(device: a.device, kernelWidth: try size().0, kernelHeight: try size().1)
  case "MPSImageConvolution":
    return MPSImageConvolution(
      device: a.device, kernelWidth: try size().0, kernelHeight: try size().1, weights: try a.row("weights"))
  case "MPSImageDilate":
    return MPSImageDilate(
      device: a.device, kernelWidth: try size().0, kernelHeight: try size().1, values: try a.row("values"))
  case "MPSImageGaussianBlur": return MPSImageGaussianBlur(device: a.device, sigma: try a.float("sigma"))
  case "MPSImageSobel":
    return MPSImageSobel(device: a.device, linearGrayColorTransform: try a.row("linearGrayColorTransform"))
  case "MPSImageCanny":
    guard a.all["sigma"] != nil else { return MPSImageCanny(device: a.device) }
    return MPSImageCanny(
      device: a.device, linearToGrayScaleTransform: try a.row("linearToGrayScaleTransform"),
      sigma: try a.float("sigma"))
  case "MPSImageMedian": return MPSImageMedian(device: a.device, kernelDiameter: try a.int("kernelDiameter"))
  case "MPSImageGuidedFilter":
    return MPSImageGuidedFilter(device: a.device, kernelDiameter: try a.int("kernelDiameter"))
  case "MPSImageBilinearScale": return MPSImageBilinearScale(device: a.device)
  case "MPSImageLanczosScale": return MPSImageLanczosScale(device: a.device)
  case "MPSImageIntegral": return MPSImageIntegral(device: a.device)
  case "MPSImageEuclideanDistanceTransform": return MPSImageEuclideanDistanceTransform(device: a.device)
  case "MPSImageTranspose": return MPSImageTranspose(device: a.device)
  case "MPSImageDivide": return MPSImageDivide(device: a.device)
  default: return nil
  }
}

/// Image filters that measure, cut and count.
func measuring(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  func info() throws -> UnsafePointer<MPSImageHistogramInfo> {
    let given = try a.json("histogramInfo")["histogram"]?.list ?? []
    guard given.count == 4, let entries = given[0].int else { throw Unsupported(why: "a histogram") }
    let made = MPSImageHistogramInfo(
      numberOfHistogramEntries: entries, histogramForAlpha: ObjCBool(given[1] == .bool(true)),
      minPixelValue: try four(given[2]), maxPixelValue: try four(given[3]))
    return UnsafePointer(kept([made]))
  }
  switch name {
  case "MPSImageStatisticsMeanAndVariance": return MPSImageStatisticsMeanAndVariance(device: a.device)
  case "MPSImageReduceRowSum": return MPSImageReduceRowSum(device: a.device)
  case "MPSImageThresholdBinary":
    return MPSImageThresholdBinary(
      device: a.device, thresholdValue: try a.float("thresholdValue"), maximumValue: try a.float("maximumValue"),
      linearGrayColorTransform: try a.row("linearGrayColorTransform"))
  case "MPSImageThresholdToZero":
    return MPSImageThresholdToZero(
      device: a.device, thresholdValue: try a.float("thresholdValue"),
      linearGrayColorTransform: try a.row("linearGrayColorTransform"))
  case "MPSImageConversion":
    let kinds = try ["srcAlpha", "destAlpha"].map { MPSAlphaType(rawValue: numericCast(try a.int($0))) }
    guard let source = kinds[0], let result = kinds[1] else { throw Unsupported(why: "an alpha") }
    return MPSImageConversion(
      device: a.device, srcAlpha: source, destAlpha: result, backgroundColor: nil, conversionInfo: nil)
  case "MPSImageHistogram": return MPSImageHistogram(device: a.device, histogramInfo: try info())
  case "MPSImageHistogramEqualization":
    return MPSImageHistogramEqualization(device: a.device, histogramInfo: try info())
  case "MPSImageHistogramSpecification":
    return MPSImageHistogramSpecification(device: a.device, histogramInfo: try info())
  default: return nil
  }
}

/// A number of red, green, blue and alpha each.
func four(_ given: JSON) throws -> SIMD4<Float> {
  let found = given.list?.compactMap(\.number).map(Float.init) ?? []
  guard found.count == 4 else { throw Unsupported(why: "numbers that are not four") }
  return SIMD4(found[0], found[1], found[2], found[3])
}

/// Convolutions with weights of one bit.
func binary(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  guard name == "MPSCNNBinaryConvolution" || name == "MPSCNNBinaryFullyConnected" else { return nil }
  let data = try a.weights("convolutionData"), (kind, flags) = try binaryForm(a)
  let terms = try binaryTerms(a)
  if name == "MPSCNNBinaryConvolution" {
    return MPSCNNBinaryConvolution(
      device: a.device, convolutionData: data, outputBiasTerms: terms[0], outputScaleTerms: terms[1],
      inputBiasTerms: terms[2], inputScaleTerms: terms[3], type: kind, flags: flags)
  }
  return MPSCNNBinaryFullyConnected(
    device: a.device, convolutionData: data, outputBiasTerms: terms[0], outputScaleTerms: terms[1],
    inputBiasTerms: terms[2], inputScaleTerms: terms[3], type: kind, flags: flags)
}

func binaryForm(_ a: Arguments) throws -> (MPSCNNBinaryConvolutionType, MPSCNNBinaryConvolutionFlags) {
  guard let kind = MPSCNNBinaryConvolutionType(rawValue: numericCast(try a.int("type"))),
    let flags = MPSCNNBinaryConvolutionFlags(rawValue: numericCast(try a.int("flags")))
  else { throw Unsupported(why: "a type of binary convolutions") }
  return (kind, flags)
}

/// Biases and scales of the result and of the source; nil where there are none.
func binaryTerms(_ a: Arguments) throws -> [UnsafePointer<Float>?] {
  try ["outputBiasTerms", "outputScaleTerms", "inputBiasTerms", "inputScaleTerms"].map { name in
    try a.all[name].map { UnsafePointer(kept(try Numbers($0).values)) }
  }
}

/// Losses and their gradients.
func losing(_ name: String, _ a: Arguments) throws -> MPSKernel? {
  switch name {
  case "MPSCNNLoss": return MPSCNNLoss(device: a.device, lossDescriptor: try lossOf(try a.json("lossDescriptor")))
  case "MPSNNForwardLoss":
    return MPSNNForwardLoss(device: a.device, lossDescriptor: try lossOf(try a.json("lossDescriptor")))
  case "MPSNNLossGradient":
    return MPSNNLossGradient(device: a.device, lossDescriptor: try lossOf(try a.json("lossDescriptor")))
  case "MPSCNNYOLOLoss":
    return MPSCNNYOLOLoss(device: a.device, lossDescriptor: try boxesOf(try a.json("lossDescriptor"), a.device))
  default: return nil
  }
}

func lossType(_ given: JSON?) throws -> MPSCNNLossType {
  guard let found = given?.int.flatMap({ MPSCNNLossType(rawValue: numericCast($0)) }) else {
    throw Unsupported(why: "a type of losses")
  }
  return found
}

func reduction(_ given: JSON?) throws -> MPSCNNReductionType {
  guard let found = given?.int.flatMap({ MPSCNNReductionType(rawValue: numericCast($0)) }) else {
    throw Unsupported(why: "a reduction")
  }
  return found
}

func lossOf(_ given: JSON) throws -> MPSCNNLossDescriptor {
  let arguments = given["arguments"]
  let made = MPSCNNLossDescriptor(
    type: try lossType(arguments?["type"]), reductionType: try reduction(arguments?["reductionType"]))
  for (name, value) in given["properties"]?.names ?? [:] { try set(made, name, value) }
  return made
}

func boxesOf(_ given: JSON, _ device: MTLDevice) throws -> MPSCNNYOLOLossDescriptor {
  let a = Arguments(all: given["arguments"]?.names ?? [:], device: device)
  let boxes = try Numbers(try a.json("anchorBoxes"))
  let made = MPSCNNYOLOLossDescriptor.cnnLossDescriptor(
    withXYLossType: try lossType(a.all["XYLossType"]), whLossType: try lossType(a.all["WHLossType"]),
    confidenceLossType: try lossType(a.all["confidenceLossType"]),
    classesLossType: try lossType(a.all["classesLossType"]), reductionType: try reduction(a.all["reductionType"]),
    anchorBoxes: boxes.values.withUnsafeBytes { Data($0) }, numberOfAnchorBoxes: boxes.shape[0])
  for (name, value) in given["properties"]?.names ?? [:] {
    let parts = name.split(separator: ".").map(String.init)
    switch parts[0] {
    case "XYLossDescriptor": try set(made.xyLossDescriptor, parts[1], value)
    case "WHLossDescriptor": try set(made.whLossDescriptor, parts[1], value)
    case "confidenceLossDescriptor": try set(made.confidenceLossDescriptor, parts[1], value)
    case "classesLossDescriptor": try set(made.classesLossDescriptor, parts[1], value)
    default: try set(made, name, value)
    }
  }
  return made
}

/// Set a property: structs and policies where the class has them, numbers by their name.
func set(_ thing: NSObject, _ name: String, _ value: JSON) throws {
  switch (thing, name) {
  case (let kernel as MPSCNNKernel, "padding"): kernel.padding = try paddingOf(value)
  case (let kernel as MPSCNNBinaryKernel, "padding"): kernel.padding = try paddingOf(value)
  case (let kernel as MPSCNNKernel, "clipRect"): kernel.clipRect = try regionOf(value)
  case (let kernel as MPSNNReduceUnary, "clipRectSource"): kernel.clipRectSource = try regionOf(value)
  case (let kernel as MPSNNReduceBinary, "primarySourceClipRect"): kernel.primarySourceClipRect = try regionOf(value)
  case (let kernel as MPSNNReduceBinary, "secondarySourceClipRect"):
    kernel.secondarySourceClipRect = try regionOf(value)
  case (let filter as MPSUnaryImageKernel, "clipRect"): filter.clipRect = try regionOf(value)
  case (let filter as MPSUnaryImageKernel, "offset"):
    guard let place = value["offset"]?.list?.compactMap(\.int), place.count == 3 else {
      throw Unsupported(why: "an offset")
    }
    filter.offset = MPSOffset(x: place[0], y: place[1], z: place[2])
  case (let filter as MPSImageReduceUnary, "clipRectSource"): filter.clipRectSource = try regionOf(value)
  case (let filter as MPSImageHistogram, "minPixelThresholdValue"): filter.minPixelThresholdValue = try four(value)
  default:
    guard let number = value.boxed else { throw Unsupported(why: "the property \(name)") }
    thing.setValue(number, forKey: name)
  }
}

func object(_ given: JSON, _ device: MTLDevice) throws -> MPSKernel {
  guard let name = given["class"]?.text else { throw Unsupported(why: "an object without a class") }
  let made = try kernelOf(name, Arguments(all: given["arguments"]?.names ?? [:], device: device))
  for (name, value) in given["properties"]?.names ?? [:] { try set(made, name, value) }
  return made
}

/// What a property shows.
func shown(_ thing: NSObject, _ name: String) throws -> JSON {
  switch (thing, name) {
  case (let kernel as MPSCNNKernel, "offset"): return .of([kernel.offset.x, kernel.offset.y, kernel.offset.z])
  case (let kernel as MPSCNNKernel, "padding"): return .int(Int(kernel.padding.paddingMethod().rawValue))
  default:
    guard let number = thing.value(forKey: name) as? NSNumber else { throw Unsupported(why: "the property \(name)") }
    return .of(number.doubleValue)
  }
}

// --- images -----------------------------------------------------------------------------------------------------------

let layout = MPSDataLayout.HeightxWidthxFeatureChannels

func empty(
  _ device: MTLDevice, _ width: Int, _ height: Int, _ channels: Int, _ form: MPSImageFeatureChannelFormat = .float32
) -> MPSImage {
  let described = MPSImageDescriptor(
    channelFormat: form, width: width, height: height, featureChannels: channels)
  return MPSImage(device: device, imageDescriptor: described)
}

/// A Float32 image of [height, width, channels].
func image(_ given: JSON, _ device: MTLDevice, shape: [Int]? = nil) throws -> MPSImage {
  let numbers = try Numbers(given, shape: shape)
  guard numbers.shape.count == 3 else { throw Unsupported(why: "an image of \(numbers.shape.count) axes") }
  let code = given["format"]?.int ?? Int(MPSImageFeatureChannelFormat.float32.rawValue)
  guard let form = MPSImageFeatureChannelFormat(rawValue: numericCast(code)) else {
    throw Unsupported(why: "the format \(code)")
  }
  let made = empty(device, numbers.shape[1], numbers.shape[0], numbers.shape[2], form)
  func store<Number>(_ elements: [Number]) {
    elements.withUnsafeBytes { made.writeBytes($0.baseAddress!, dataLayout: layout, imageIndex: 0) }
  }
  switch form {
  case .float32: store(numbers.values)
  case .unorm8: store(numbers.values.map { UInt8(($0 * 255).rounded()) })
  case .unorm16: store(numbers.values.map { UInt16(($0 * 65535).rounded()) })
  case .float16 where numbers.values.allSatisfy { $0 == 0 || $0 == 1 }:
    store(numbers.values.map { UInt16($0 == 0 ? 0 : 0x3c00) })
  default: throw Unsupported(why: "numbers of the format \(code)")
  }
  return made
}

/// Float32 images of [images, height, width, channels].
func batch(_ given: JSON, _ device: MTLDevice) throws -> [MPSImage] {
  try parts(given).map { values, shape in
    let made = empty(device, shape[1], shape[0], shape[2])
    values.withUnsafeBytes { made.writeBytes($0.baseAddress!, dataLayout: layout, imageIndex: 0) }
    return made
  }
}

/// The arrays of each image of a batch.
func parts(_ given: JSON) throws -> [([Float], [Int])] {
  let numbers = try Numbers(given), shape = Array(numbers.shape.dropFirst()), count = shape.reduce(1, *)
  guard shape.count == 3 else { throw Unsupported(why: "a batch of \(numbers.shape.count) axes") }
  return (0..<numbers.shape[0]).map { (Array(numbers.values[($0 * count)..<(($0 + 1) * count)]), shape) }
}

/// Half precision bits as a number.
func widened(_ bits: UInt16) -> Float {
  let (sign, exponent, fraction) = (bits >> 15, Int(bits >> 10 & 31), Float(bits & 1023))
  let size: Float
  if exponent == 31 { size = fraction == 0 ? .infinity : .nan }
  else if exponent == 0 { size = fraction * Float(sign: .plus, exponent: -24, significand: 1) }
  else { size = (1 + fraction / 1024) * Float(sign: .plus, exponent: exponent - 15, significand: 1) }
  return sign == 1 ? -size : size
}

/// [height, width, channels], behind the number of images where there are several.
func pixels(_ image: MPSImage) throws -> JSON {
  let one = [image.height, image.width, image.featureChannels], found = try numbers(image)
  return .of(image.numberOfImages == 1 ? one : [image.numberOfImages] + one, found)
}

/// [images, height, width, channels].
func pixels(of batch: [MPSImage]) throws -> JSON {
  let one = batch[0]
  return .of([batch.count, one.height, one.width, one.featureChannels], try batch.flatMap(numbers))
}

func numbers(_ image: MPSImage) throws -> [Float] {
  let count = image.height * image.width * image.featureChannels
  let form = image.featureChannelFormat
  var found: [Float] = []
  for index in 0..<image.numberOfImages {
    switch form {
    case .float32:
      var part = [Float](repeating: .nan, count: count)
      part.withUnsafeMutableBytes { image.readBytes($0.baseAddress!, dataLayout: layout, imageIndex: index) }
      found += part
    case .float16:
      var part = [UInt16](repeating: 0xffff, count: count)
      part.withUnsafeMutableBytes { image.readBytes($0.baseAddress!, dataLayout: layout, imageIndex: index) }
      found += part.map(widened)
    default: throw Unsupported(why: "a result of another format")
    }
  }
  return found
}

// --- one case ---------------------------------------------------------------------------------------------------------

/// What was encoded, and what is to be read of it when it is done.
struct Encoded {
  var result: MPSImage, state: MPSState?
  var gradients: [MPSImage] = [], kernels: [MPSKernel] = [], loss: MPSImage?
}

func finish(_ commandBuffer: MTLCommandBuffer) throws {
  commandBuffer.commit()
  commandBuffer.waitUntilCompleted()
  if let error = commandBuffer.error { throw error }
}

func forward(_ kernel: MPSKernel, _ given: JSON, _ sources: [MPSImage], _ commandBuffer: MTLCommandBuffer) throws
  -> Encoded
{
  let wantsState = given["gradients"] != nil
  let size = given["destination"]?.list?.compactMap(\.int)
  let target = size.map { empty(commandBuffer.device, $0[0], $0[1], $0[2]) }
  var state: MPSState?
  switch (kernel, sources.count) {
  case (let kernel as MPSCNNKernel, 1):
    kernel.destinationImageAllocator = MPSImage.defaultAllocator()
    if let target = target, wantsState {
      state = kernel.resultState(sourceImage: sources[0], sourceStates: nil, destinationImage: target)
      guard let made = state else { throw Unsupported(why: "a kernel without a state") }
      kernel.encode(
        commandBuffer: commandBuffer, sourceImage: sources[0], destinationState: made, destinationImage: target)
      return Encoded(result: target, state: made)
    }
    if let target = target {
      kernel.encode(commandBuffer: commandBuffer, sourceImage: sources[0], destinationImage: target)
      return Encoded(result: target, state: nil)
    }
    guard wantsState else {
      return Encoded(result: kernel.encode(commandBuffer: commandBuffer, sourceImage: sources[0]), state: nil)
    }
    let result = kernel.encode(
      commandBuffer: commandBuffer, sourceImage: sources[0], destinationState: &state,
      destinationStateIsTemporary: false)
    return Encoded(result: result, state: state)
  case (let kernel as MPSCNNBinaryKernel, 2):
    kernel.destinationImageAllocator = MPSImage.defaultAllocator()
    guard target == nil else { throw Unsupported(why: "a destination of two sources") }
    guard wantsState else {
      let result = kernel.encode(commandBuffer: commandBuffer, primaryImage: sources[0], secondaryImage: sources[1])
      return Encoded(result: result, state: nil)
    }
    let result = kernel.encode(
      commandBuffer: commandBuffer, primaryImage: sources[0], secondaryImage: sources[1], destinationState: &state,
      destinationStateIsTemporary: false)
    return Encoded(result: result, state: state)
  default: throw Unsupported(why: "\(type(of: kernel)) of \(sources.count) sources")
  }
}

func lossData(_ values: [Float], _ shape: [Int]) -> MPSCNNLossDataDescriptor? {
  MPSCNNLossDataDescriptor(
    data: values.withUnsafeBytes { Data($0) }, layout: layout,
    size: MTLSize(width: shape[1], height: shape[0], depth: shape[2]))
}

/// A loss, or the gradient of one.
func lost(_ kernel: MPSKernel, _ given: JSON, _ sources: [MPSImage], _ commandBuffer: MTLCommandBuffer) throws
  -> Encoded
{
  let device = commandBuffer.device
  func labels() throws -> MPSCNNLossLabels {
    guard let size = given["lossImageSize"]?.list?.compactMap(\.int) else { throw Unsupported(why: "labels") }
    func data(_ given: JSON) throws -> MPSCNNLossDataDescriptor? {
      let numbers = try Numbers(given)
      return lossData(numbers.values, numbers.shape)
    }
    guard let described = try data(given["labels"] ?? .null) else { throw Unsupported(why: "labels") }
    return MPSCNNLossLabels(
      device: device, lossImageSize: MTLSize(width: size[0], height: size[1], depth: size[2]),
      labelsDescriptor: described, weightsDescriptor: try given["labelWeights"].flatMap(data))
  }
  func images() throws -> ([MPSImage], [MPSImage]?) {
    ([try image(given["labels"] ?? .null, device)], try given["labelWeights"].map { [try image($0, device)] })
  }
  switch kernel {
  case let kernel as MPSCNNLoss:
    kernel.destinationImageAllocator = MPSImage.defaultAllocator()
    let labels = try labels()
    let result = kernel.encode(commandBuffer: commandBuffer, sourceImage: sources[0], labels: labels)
    return Encoded(result: result, state: nil, loss: labels.lossImage())
  case let kernel as MPSCNNYOLOLoss:
    kernel.destinationImageAllocator = MPSImage.defaultAllocator()
    let labels = try labels()
    let result = kernel.encode(commandBuffer: commandBuffer, sourceImage: sources[0], labels: labels)
    return Encoded(result: result, state: nil, loss: labels.lossImage())
  case let kernel as MPSNNForwardLoss:
    kernel.destinationImageAllocator = MPSImage.defaultAllocator()
    let (labels, weights) = try images()
    let made = kernel.encodeBatch(
      commandBuffer: commandBuffer, sourceImages: [sources[0]], labels: labels, weights: weights, outStates: nil,
      isTemporary: false)
    return Encoded(result: made[0], state: nil)
  case let kernel as MPSNNLossGradient:
    kernel.destinationImageAllocator = MPSImage.defaultAllocator()
    let (labels, weights) = try images()
    let made = kernel.encodeBatch(
      commandBuffer: commandBuffer, sourceGradients: [sources[0]], sourceImages: [sources[1]], labels: labels,
      weights: weights, sourceStates: nil)
    return Encoded(result: made[0], state: nil)
  default: throw Unsupported(why: "\(type(of: kernel)) with labels")
  }
}

func kernelAnswer(_ given: JSON, _ device: MTLDevice, _ queue: MTLCommandQueue) throws -> JSON {
  let kernel = try object(given["kernel"] ?? .null, device)
  let sources = try (given["sources"]?.list ?? []).map { try image($0, device) }
  guard let commandBuffer = queue.makeCommandBuffer() else { throw Unsupported(why: "no command buffer") }
  var done = try given["labels"] == nil
    ? forward(kernel, given, sources, commandBuffer) : lost(kernel, given, sources, commandBuffer)
  done.kernels = [kernel]
  for each in given["gradients"]?.list ?? [] {
    guard let back = try object(each["kernel"] ?? .null, device) as? MPSCNNGradientKernel else {
      throw Unsupported(why: "a gradient kernel")
    }
    back.destinationImageAllocator = MPSImage.defaultAllocator()
    let shape = [done.result.height, done.result.width, done.result.featureChannels]
    let incoming = try image(each["incoming"] ?? .null, device, shape: shape)
    let secondary = each["secondary"]?.int.map { sources[$0] } ?? done.result
    done.kernels.append(back)
    if let state = done.state {
      done.gradients.append(
        back.encode(
          commandBuffer: commandBuffer, sourceGradient: incoming, sourceImage: secondary, gradientState: state))
    } else {  // classes whose forward kernel leaves no state
      done.gradients.append(
        back.encode(commandBuffer: commandBuffer, primaryImage: incoming, secondaryImage: secondary))
    }
  }
  for each in [done.result] + done.gradients { each.synchronize(on: commandBuffer) }
  done.loss?.synchronize(on: commandBuffer)
  done.state?.synchronize(on: commandBuffer)
  try finish(commandBuffer)
  var values = try Dictionary(uniqueKeysWithValues: names(given["read"]).map { ($0, try value($0, done)) })
  for name in names(given["shows"]) { values[name] = try shown(kernel, name) }
  return answer(values, done.kernels)
}

func names(_ given: JSON?) -> [String] { given?.list?.compactMap(\.text) ?? [] }

func answer(_ values: [String: JSON], _ things: [NSObject]) -> JSON {
  .object(["values": .object(values), "classes": .list(things.map { .text(String(describing: type(of: $0))) })])
}

func value(_ name: String, _ done: Encoded) throws -> JSON {
  let result = done.result
  switch name {
  case "result": return try pixels(result)
  case "loss":
    guard let loss = done.loss else { throw Unsupported(why: "a kernel without a loss") }
    return try pixels(loss)
  case "gradients": return .list(try done.gradients.map(pixels))
  case "size": return .of([result.width, result.height, result.featureChannels])
  case "pixelFormat": return .int(Int(result.pixelFormat.rawValue))
  case "gradientForWeights": return try floats((done.state as? MPSCNNConvolutionGradientState)?.gradientForWeights)
  case "gradientForBiases": return try floats((done.state as? MPSCNNConvolutionGradientState)?.gradientForBiases)
  case "gradientForGamma":
    if let state = done.state as? MPSCNNGroupNormalizationGradientState { return try floats(state.gradientForGamma) }
    return try floats((done.state as? MPSCNNInstanceNormalizationGradientState)?.gradientForGamma)
  case "gradientForBeta":
    if let state = done.state as? MPSCNNGroupNormalizationGradientState { return try floats(state.gradientForBeta) }
    return try floats((done.state as? MPSCNNInstanceNormalizationGradientState)?.gradientForBeta)
  default: throw Unsupported(why: "to read \(name)")
  }
}

func floats(_ buffer: MTLBuffer?) throws -> JSON {
  guard let buffer = buffer else { throw Unsupported(why: "a state without that buffer") }
  let count = buffer.length / MemoryLayout<Float>.stride
  let start = buffer.contents().bindMemory(to: Float.self, capacity: count)
  return .of([count], Array(UnsafeBufferPointer(start: start, count: count)))
}

/// A buffer of whole numbers.
func counts(_ given: JSON, _ device: MTLDevice) throws -> MTLBuffer {
  let values = try Numbers(given).values.map { UInt32($0) }
  guard let buffer = device.makeBuffer(length: 4 * values.count, options: .storageModeShared) else {
    throw Unsupported(why: "no memory for a histogram")
  }
  for (place, value) in values.enumerated() {
    buffer.contents().storeBytes(of: value, toByteOffset: 4 * place, as: UInt32.self)
  }
  return buffer
}

/// An image filter over its sources; of a histogram the counts.
func filterAnswer(_ given: JSON, _ device: MTLDevice, _ queue: MTLCommandQueue) throws -> JSON {
  let kernel = try object(given["kernel"] ?? .null, device)
  let sources = try (given["sources"]?.list ?? []).map { try image($0, device) }
  guard let commandBuffer = queue.makeCommandBuffer() else { throw Unsupported(why: "no command buffer") }
  if let shape = given["counts"]?.list?.compactMap(\.int), let histogram = kernel as? MPSImageHistogram {
    let count = shape.reduce(1, *)
    let buffer = try counts(.object(["shape": .of(shape), "numbers": .of(Array(repeating: 0, count: count))]), device)
    histogram.encode(to: commandBuffer, sourceTexture: sources[0].texture, histogram: buffer, histogramOffset: 0)
    try finish(commandBuffer)
    let found = (0..<count).map { Float(buffer.contents().load(fromByteOffset: 4 * $0, as: UInt32.self)) }
    return answer(["counts": .of(shape, found)], [kernel])
  }
  guard let size = given["destination"]?.list?.compactMap(\.int) else { throw Unsupported(why: "no destination") }
  let result = empty(device, size[0], size[1], size[2])
  let tables = try (given["histograms"]?.list ?? []).map { try counts($0, device) }
  switch kernel {
  case let filter as MPSImageGuidedFilter:
    filter.encodeRegression(
      to: commandBuffer, sourceTexture: sources[0].texture, guidanceTexture: sources[1].texture,
      weightsTexture: sources.count > 2 ? sources[2].texture : nil, destinationCoefficientsTexture: result.texture)
  case let filter as MPSBinaryImageKernel:
    filter.encode(
      commandBuffer: commandBuffer, primaryImage: sources[0], secondaryImage: sources[1], destinationImage: result)
  case let filter as MPSUnaryImageKernel:
    if let equal = filter as? MPSImageHistogramEqualization {
      equal.encodeTransform(
        to: commandBuffer, sourceTexture: sources[0].texture, histogram: tables[0], histogramOffset: 0)
    }
    if let like = filter as? MPSImageHistogramSpecification {
      like.encodeTransform(
        to: commandBuffer, sourceTexture: sources[0].texture, sourceHistogram: tables[0], sourceHistogramOffset: 0,
        desiredHistogram: tables[1], desiredHistogramOffset: 0)
    }
    filter.encode(commandBuffer: commandBuffer, sourceImage: sources[0], destinationImage: result)
  default: throw Unsupported(why: "\(type(of: kernel)) of \(sources.count) images")
  }
  result.synchronize(on: commandBuffer)
  try finish(commandBuffer)
  return answer(["result": try pixels(result)], [kernel])
}

func randomAnswer(_ given: JSON, _ device: MTLDevice, _ queue: MTLCommandQueue) throws -> JSON {
  let arguments = Arguments(all: given["kernel"]?["arguments"]?.names ?? [:], device: device)
  guard let kind = MPSDataType(rawValue: numericCast(try arguments.int("destinationDataType"))),
    let size = given["matrix"]?.list?.compactMap(\.int)
  else { throw Unsupported(why: "a type of numbers") }
  let distribution = try distributionOf(arguments.all["distributionDescriptor"] ?? .null)
  let kernel = MPSMatrixRandomPhilox(
    device: device, destinationDataType: kind, seed: try arguments.int("seed"), distributionDescriptor: distribution)
  let rowBytes = MPSMatrixDescriptor.rowBytes(forColumns: size[1], dataType: kind)
  let form = MPSMatrixDescriptor(rows: size[0], columns: size[1], rowBytes: rowBytes, dataType: kind)
  let matrix = MPSMatrix(device: device, descriptor: form)
  guard let commandBuffer = queue.makeCommandBuffer() else { throw Unsupported(why: "no command buffer") }
  kernel.encode(commandBuffer: commandBuffer, destinationMatrix: matrix)
  matrix.synchronize(on: commandBuffer)
  try finish(commandBuffer)
  var numbers: [JSON] = []
  for row in 0..<size[0] {
    let start = matrix.data.contents() + row * matrix.rowBytes
    for column in 0..<size[1] {
      let place = start + column * 4
      numbers.append(
        kind == .uInt32
          ? .double(Double(place.load(as: UInt32.self))) : .of(Double(place.load(as: Float.self))))
    }
  }
  return answer(["matrix": .object(["shape": .of(size), "numbers": .list(numbers)])], [kernel])
}

/// A Float32 matrix in memory that the host and the device share.
func matrix(_ given: JSON, _ device: MTLDevice) throws -> MPSMatrix {
  let numbers = try Numbers(given), shape = numbers.shape
  guard shape.count == 2 else { throw Unsupported(why: "a matrix of \(shape.count) axes") }
  let rowBytes = MPSMatrixDescriptor.rowBytes(forColumns: shape[1], dataType: .float32)
  guard let buffer = device.makeBuffer(length: shape[0] * rowBytes, options: .storageModeShared) else {
    throw Unsupported(why: "no memory for a matrix")
  }
  for (place, value) in numbers.values.enumerated() {
    let offset = place / shape[1] * rowBytes + place % shape[1] * 4
    buffer.contents().storeBytes(of: value, toByteOffset: offset, as: Float.self)
  }
  return MPSMatrix(
    buffer: buffer,
    descriptor: MPSMatrixDescriptor(rows: shape[0], columns: shape[1], rowBytes: rowBytes, dataType: .float32))
}

func originOf(_ given: JSON) throws -> MTLOrigin {
  guard let place = given["origin"]?.list?.compactMap(\.int), place.count == 3 else {
    throw Unsupported(why: "an origin")
  }
  return MTLOrigin(x: place[0], y: place[1], z: place[2])
}

/// A kernel over matrices, encoded.
func encoded(
  _ name: String, _ a: Arguments, _ properties: [String: JSON], _ commandBuffer: MTLCommandBuffer,
  _ sources: [MPSMatrix], _ result: MPSMatrix
) throws -> MPSKernel {
  func double(_ name: String) throws -> Double { Double(try a.float(name)) }
  func gradient(_ kernel: MPSMatrixSoftMaxGradient) -> MPSKernel {
    kernel.encode(
      to: commandBuffer, gradientMatrix: sources[0], forwardOutputMatrix: sources[1], resultMatrix: result)
    return kernel
  }
  func forward(_ kernel: MPSMatrixSoftMax) -> MPSKernel {
    kernel.encode(commandBuffer: commandBuffer, inputMatrix: sources[0], resultMatrix: result)
    return kernel
  }
  switch (name, sources.count) {
  case ("MPSMatrixMultiplication", 2):
    let kernel = MPSMatrixMultiplication(
      device: a.device, transposeLeft: try a.flag("transposeLeft"), transposeRight: try a.flag("transposeRight"),
      resultRows: try a.int("resultRows"), resultColumns: try a.int("resultColumns"),
      interiorColumns: try a.int("interiorColumns"), alpha: try double("alpha"), beta: try double("beta"))
    for (name, value) in properties {
      switch name {
      case "leftMatrixOrigin": kernel.leftMatrixOrigin = try originOf(value)
      case "rightMatrixOrigin": kernel.rightMatrixOrigin = try originOf(value)
      case "resultMatrixOrigin": kernel.resultMatrixOrigin = try originOf(value)
      default: throw Unsupported(why: "the property \(name)")
      }
    }
    kernel.encode(
      commandBuffer: commandBuffer, leftMatrix: sources[0], rightMatrix: sources[1], resultMatrix: result)
    return kernel
  case ("MPSMatrixSoftMax", 1): return forward(MPSMatrixSoftMax(device: a.device))
  case ("MPSMatrixLogSoftMax", 1): return forward(MPSMatrixLogSoftMax(device: a.device))
  case ("MPSMatrixSoftMaxGradient", 2): return gradient(MPSMatrixSoftMaxGradient(device: a.device))
  case ("MPSMatrixLogSoftMaxGradient", 2): return gradient(MPSMatrixLogSoftMaxGradient(device: a.device))
  case ("MPSMatrixSolveTriangular", 2):
    let kernel = MPSMatrixSolveTriangular(
      device: a.device, right: try a.flag("right"), upper: try a.flag("upper"), transpose: try a.flag("transpose"),
      unit: try a.flag("unit"), order: try a.int("order"),
      numberOfRightHandSides: try a.int("numberOfRightHandSides"), alpha: try double("alpha"))
    kernel.encode(
      commandBuffer: commandBuffer, sourceMatrix: sources[0], rightHandSideMatrix: sources[1], solutionMatrix: result)
    return kernel
  case ("MPSMatrixSolveCholesky", 2):
    let kernel = MPSMatrixSolveCholesky(
      device: a.device, upper: try a.flag("upper"), order: try a.int("order"),
      numberOfRightHandSides: try a.int("numberOfRightHandSides"))
    kernel.encode(
      commandBuffer: commandBuffer, sourceMatrix: sources[0], rightHandSideMatrix: sources[1], solutionMatrix: result)
    return kernel
  default: throw Unsupported(why: "the class \(name) of \(sources.count) matrices")
  }
}

func matricesAnswer(_ given: JSON, _ device: MTLDevice, _ queue: MTLCommandQueue) throws -> JSON {
  guard let commandBuffer = queue.makeCommandBuffer(), let size = given["matrix"]?.list?.compactMap(\.int) else {
    throw Unsupported(why: "a matrix without a size")
  }
  let sources = try (given["sources"]?.list ?? []).map { try matrix($0, device) }
  let zeros = JSON.list(Array(repeating: .int(0), count: size[0] * size[1]))
  let result = try matrix(given["initial"] ?? .object(["shape": .of(size), "numbers": zeros]), device)
  let arguments = Arguments(all: given["kernel"]?["arguments"]?.names ?? [:], device: device)
  let properties = given["kernel"]?["properties"]?.names ?? [:]
  let kernel = try encoded(
    given["kernel"]?["class"]?.text ?? "", arguments, properties, commandBuffer, sources, result)
  try finish(commandBuffer)
  let numbers: [Float] = (0..<(size[0] * size[1])).map { place in
    let offset = place / size[1] * result.rowBytes + place % size[1] * 4
    return result.data.contents().load(fromByteOffset: offset, as: Float.self)
  }
  return answer(["matrix": .of(size, numbers)], [kernel])
}

func distributionOf(_ given: JSON) throws -> MPSMatrixRandomDistributionDescriptor {
  if let bounds = given["uniform"]?.list?.compactMap(\.number).map(Float.init) {
    return .uniformDistributionDescriptor(withMinimum: bounds[0], maximum: bounds[1])
  }
  if let moments = given["normal"]?.list?.compactMap(\.number).map(Float.init) {
    return .normalDistributionDescriptor(withMean: moments[0], standardDeviation: moments[1])
  }
  return .default()
}

func spacingAnswer(_ given: JSON) throws -> JSON {
  guard let kind = given["dataType"]?.int.flatMap({ MPSDataType(rawValue: numericCast($0)) }),
    let columns = given["columns"]?.list?.compactMap(\.int)
  else { throw Unsupported(why: "a type of numbers") }
  return answer(
    ["rowBytes": .of(columns.map { MPSMatrixDescriptor.rowBytes(forColumns: $0, dataType: kind) })], [])
}

let distributionName = "MPSMatrixRandomDistributionDescriptor"

func objectAnswer(_ given: JSON, _ device: MTLDevice) throws -> JSON {
  let described = given["object"] ?? .null, isDistribution = names(given["classes"]) == [distributionName]
  let made: NSObject = isDistribution ? try distributionOf(described) : try object(described, device)
  let values = try names(given["shows"]).map { ($0, try shown(made, $0)) }
  return answer(Dictionary(uniqueKeysWithValues: values), [made])
}

// --- graphs -----------------------------------------------------------------------------------------------------------

final class Handle: NSObject, MPSHandle {
  let place: Int
  init(_ place: Int) { self.place = place }
  required init?(coder: NSCoder) { return nil }
  static var supportsSecureCoding: Bool { true }
  func encode(with coder: NSCoder) {}
  func label() -> String? { "source \(place)" }
}

/// A filter node by its class and the images that it reads.
func node(_ name: String, _ a: Arguments, _ read: (JSON) throws -> MPSNNImageNode) throws -> MPSNNFilterNode {
  if name == "MPSNNConcatenationNode" {
    return MPSNNConcatenationNode(sources: try (try a.json("sources").list ?? []).map(read))
  }
  if name == "MPSNNForwardLossNode" {
    let sources = try (try a.json("sources").list ?? []).map(read)
    return MPSNNForwardLossNode(sources: sources, lossDescriptor: try lossOf(try a.json("lossDescriptor")))
  }
  if a.all["leftSource"] != nil {
    return try arithmeticNode(name, try read(try a.json("leftSource")), try read(try a.json("rightSource")))
  }
  let source = try read(try a.json("source"))
  if name == "MPSCNNLossNode" {
    return MPSCNNLossNode(source: source, lossDescriptor: try lossOf(try a.json("lossDescriptor")))
  }
  if name == "MPSCNNYOLOLossNode" {
    return MPSCNNYOLOLossNode(source: source, lossDescriptor: try boxesOf(try a.json("lossDescriptor"), a.device))
  }
  if let found = try plainNode(name, source) ?? windowNode(name, a, source) ?? layerNode(name, a, source) {
    return found
  }
  return try neuronNode(name, a, source)
}

func arithmeticNode(_ name: String, _ left: MPSNNImageNode, _ right: MPSNNImageNode) throws -> MPSNNFilterNode {
  switch name {
  case "MPSNNAdditionNode": return MPSNNAdditionNode(leftSource: left, rightSource: right)
  case "MPSNNSubtractionNode": return MPSNNSubtractionNode(leftSource: left, rightSource: right)
  case "MPSNNMultiplicationNode": return MPSNNMultiplicationNode(leftSource: left, rightSource: right)
  case "MPSNNDivisionNode": return MPSNNDivisionNode(leftSource: left, rightSource: right)
  case "MPSNNComparisonNode": return MPSNNComparisonNode(leftSource: left, rightSource: right)
  default: throw Unsupported(why: "the class \(name)")
  }
}

/// Nodes of a source alone.
func plainNode(_ name: String, _ source: MPSNNImageNode) -> MPSNNFilterNode? {
  switch name {
  case "MPSCNNSoftMaxNode": return MPSCNNSoftMaxNode(source: source)
  case "MPSCNNLogSoftMaxNode": return MPSCNNLogSoftMaxNode(source: source)
  case "MPSNNInitialGradientNode": return MPSNNInitialGradientNode(source: source)
  case "MPSNNReductionRowMinNode": return MPSNNReductionRowMinNode(source: source)
  case "MPSNNReductionRowMaxNode": return MPSNNReductionRowMaxNode(source: source)
  case "MPSNNReductionRowMeanNode": return MPSNNReductionRowMeanNode(source: source)
  case "MPSNNReductionRowSumNode": return MPSNNReductionRowSumNode(source: source)
  case "MPSNNReductionColumnMinNode": return MPSNNReductionColumnMinNode(source: source)
  case "MPSNNReductionColumnMaxNode": return MPSNNReductionColumnMaxNode(source: source)
  case "MPSNNReductionColumnMeanNode": return MPSNNReductionColumnMeanNode(source: source)
  case "MPSNNReductionColumnSumNode": return MPSNNReductionColumnSumNode(source: source)
  case "MPSNNReductionFeatureChannelsMinNode": return MPSNNReductionFeatureChannelsMinNode(source: source)
  case "MPSNNReductionFeatureChannelsMaxNode": return MPSNNReductionFeatureChannelsMaxNode(source: source)
  case "MPSNNReductionFeatureChannelsMeanNode": return MPSNNReductionFeatureChannelsMeanNode(source: source)
  case "MPSNNReductionFeatureChannelsSumNode": return MPSNNReductionFeatureChannelsSumNode(source: source)
  case "MPSNNReductionFeatureChannelsArgumentMinNode":
    return MPSNNReductionFeatureChannelsArgumentMinNode(source: source)
  case "MPSNNReductionFeatureChannelsArgumentMaxNode":
    return MPSNNReductionFeatureChannelsArgumentMaxNode(source: source)
  case "MPSNNReductionSpatialMeanNode": return MPSNNReductionSpatialMeanNode(source: source)
  default: return nil
  }
}

/// Nodes with a window.
func windowNode(_ name: String, _ a: Arguments, _ source: MPSNNImageNode) throws -> MPSNNFilterNode? {
  if a.all["filterSize"] != nil {
    let size = try a.int("filterSize"), stride = try a.int("stride")
    switch name {
    case "MPSCNNPoolingAverageNode": return MPSCNNPoolingAverageNode(source: source, filterSize: size, stride: stride)
    case "MPSCNNPoolingMaxNode": return MPSCNNPoolingMaxNode(source: source, filterSize: size, stride: stride)
    default: return nil
    }
  }
  if a.all["kernelSize"] != nil {
    let size = try a.int("kernelSize")
    switch name {
    case "MPSCNNSpatialNormalizationNode": return MPSCNNSpatialNormalizationNode(source: source, kernelSize: size)
    case "MPSCNNLocalContrastNormalizationNode":
      return MPSCNNLocalContrastNormalizationNode(source: source, kernelSize: size)
    case "MPSCNNCrossChannelNormalizationNode":
      return MPSCNNCrossChannelNormalizationNode(source: source, kernelSize: size)
    default: return nil
    }
  }
  guard a.all["kernelWidth"] != nil else { return nil }
  let size = (try a.int("kernelWidth"), try a.int("kernelHeight"))
  let stride = (try a.int("strideInPixelsX"), try a.int("strideInPixelsY"))
  switch name {
  case "MPSCNNPoolingMaxNode":
    return MPSCNNPoolingMaxNode(
      source: source, kernelWidth: size.0, kernelHeight: size.1, strideInPixelsX: stride.0, strideInPixelsY: stride.1)
  case "MPSCNNPoolingAverageNode":
    return MPSCNNPoolingAverageNode(
      source: source, kernelWidth: size.0, kernelHeight: size.1, strideInPixelsX: stride.0, strideInPixelsY: stride.1)
  case "MPSCNNPoolingL2NormNode":
    return MPSCNNPoolingL2NormNode(
      source: source, kernelWidth: size.0, kernelHeight: size.1, strideInPixelsX: stride.0, strideInPixelsY: stride.1)
  case "MPSCNNDilatedPoolingMaxNode":
    return MPSCNNDilatedPoolingMaxNode(
      source: source, kernelWidth: size.0, kernelHeight: size.1, strideInPixelsX: stride.0, strideInPixelsY: stride.1,
      dilationRateX: try a.int("dilationRateX"), dilationRateY: try a.int("dilationRateY"))
  default: return nil
  }
}

/// Nodes with a data source, and the rest that take numbers.
func layerNode(_ name: String, _ a: Arguments, _ source: MPSNNImageNode) throws -> MPSNNFilterNode? {
  switch name {
  case "MPSCNNConvolutionNode": return MPSCNNConvolutionNode(source: source, weights: try a.weights())
  case "MPSCNNFullyConnectedNode": return MPSCNNFullyConnectedNode(source: source, weights: try a.weights())
  case "MPSCNNConvolutionTransposeNode":
    return MPSCNNConvolutionTransposeNode(source: source, convolutionGradientState: nil, weights: try a.weights())
  case "MPSCNNBatchNormalizationNode":
    return MPSCNNBatchNormalizationNode(source: source, dataSource: try BatchRows(try a.json("dataSource")))
  case "MPSCNNInstanceNormalizationNode":
    return MPSCNNInstanceNormalizationNode(source: source, dataSource: try GroupRows(try a.json("dataSource")))
  case "MPSCNNGroupNormalizationNode":
    return MPSCNNGroupNormalizationNode(source: source, dataSource: try GroupRows(try a.json("dataSource")))
  case "MPSCNNNeuronNode": return MPSCNNNeuronNode(source: source, descriptor: try a.neuron("descriptor"))
  case "MPSCNNDropoutNode":
    return MPSCNNDropoutNode(
      source: source, keepProbability: try a.float("keepProbability"), seed: try a.int("seed"),
      maskStrideInPixels: try a.size("maskStrideInPixels"))
  case "MPSNNPadNode":
    guard let edge = MPSImageEdgeMode(rawValue: numericCast(try a.int("edgeMode"))) else { return nil }
    return MPSNNPadNode(
      source: source, paddingSizeBefore: try a.coordinate("paddingSizeBefore"),
      paddingSizeAfter: try a.coordinate("paddingSizeAfter"), edgeMode: edge)
  case "MPSCNNUpsamplingNearestNode":
    return MPSCNNUpsamplingNearestNode(
      source: source, integerScaleFactorX: try a.int("integerScaleFactorX"),
      integerScaleFactorY: try a.int("integerScaleFactorY"))
  case "MPSCNNUpsamplingBilinearNode":
    return MPSCNNUpsamplingBilinearNode(
      source: source, integerScaleFactorX: try a.int("integerScaleFactorX"),
      integerScaleFactorY: try a.int("integerScaleFactorY"), alignCorners: try a.flag("alignCorners"))
  case "MPSCNNBinaryConvolutionNode":
    let data = try a.weights(), (kind, flags) = try binaryForm(a), terms = try binaryTerms(a)
    return MPSCNNBinaryConvolutionNode(
      source: source, weights: data, outputBiasTerms: terms[0], outputScaleTerms: terms[1], inputBiasTerms: terms[2],
      inputScaleTerms: terms[3], type: kind, flags: flags)
  case "MPSCNNBinaryFullyConnectedNode":
    let data = try a.weights(), (kind, flags) = try binaryForm(a), terms = try binaryTerms(a)
    return MPSCNNBinaryFullyConnectedNode(
      source: source, weights: data, outputBiasTerms: terms[0], outputScaleTerms: terms[1], inputBiasTerms: terms[2],
      inputScaleTerms: terms[3], type: kind, flags: flags)
  case "MPSNNGramMatrixCalculationNode":
    return MPSNNGramMatrixCalculationNode(source: source, alpha: try a.float("alpha"))
  default: return nil
  }
}

/// Nodes of neurons with the parameters that they have by default.
func neuronNode(_ name: String, _ a: Arguments, _ source: MPSNNImageNode) throws -> MPSNNFilterNode {
  if a.all.count == 1 {
    switch name {
    case "MPSCNNNeuronReLUNode": return MPSCNNNeuronReLUNode(source: source)
    case "MPSCNNNeuronReLUNNode": return MPSCNNNeuronReLUNNode(source: source)
    case "MPSCNNNeuronELUNode": return MPSCNNNeuronELUNode(source: source)
    case "MPSCNNNeuronHardSigmoidNode": return MPSCNNNeuronHardSigmoidNode(source: source)
    case "MPSCNNNeuronSoftPlusNode": return MPSCNNNeuronSoftPlusNode(source: source)
    case "MPSCNNNeuronTanHNode": return MPSCNNNeuronTanHNode(source: source)
    case "MPSCNNNeuronPowerNode": return MPSCNNNeuronPowerNode(source: source)
    case "MPSCNNNeuronExponentialNode": return MPSCNNNeuronExponentialNode(source: source)
    case "MPSCNNNeuronLogarithmNode": return MPSCNNNeuronLogarithmNode(source: source)
    case "MPSCNNNeuronLinearNode": return MPSCNNNeuronLinearNode(source: source)
    default: break
    }
  }
  throw Unsupported(why: "the class \(name)")
}

/// The nodes of a graph, and the data sources of its convolutions.
func nodesOf(_ given: JSON, _ device: MTLDevice) throws -> ([MPSNNFilterNode], [Weights]) {
  let sources = (given["sources"]?.list ?? []).indices.map { MPSNNImageNode(handle: Handle($0)) }
  var nodes: [MPSNNFilterNode] = []
  let layers = Layers()
  for each in given["nodes"]?.list ?? [] {
    let arguments = Arguments(all: each["arguments"]?.names ?? [:], device: device, layers: layers)
    let made = try node(each["class"]?.text ?? "", arguments) { image in
      if let place = image["source"]?.int { return sources[place] }
      if let place = image["node"]?.int { return nodes[place].resultImage }
      throw Unsupported(why: "an image of a graph")
    }
    for (name, value) in each["properties"]?.names ?? [:] { try set(made, name, value) }
    nodes.append(made)
  }
  return (nodes, layers.sources)
}

func graphAnswer(_ given: JSON, _ device: MTLDevice, _ queue: MTLCommandQueue) throws -> JSON {
  let arrays = given["sources"]?.list ?? [], (nodes, _) = try nodesOf(given, device)
  guard let last = nodes.last,
    let graph = MPSNNGraph(device: device, resultImage: last.resultImage, resultImageIsNeeded: true),
    let commandBuffer = queue.makeCommandBuffer()
  else { throw Unsupported(why: "a graph that is not made") }
  if let form = given["format"]?.int.flatMap({ MPSImageFeatureChannelFormat(rawValue: numericCast($0)) }) {
    graph.format = form
  }
  graph.destinationImageAllocator = MPSImage.defaultAllocator()
  let order = graph.sourceImageHandles.compactMap { ($0 as? Handle)?.place }
  let result = graph.encode(to: commandBuffer, sourceImages: try order.map { try image(arrays[$0], device) })
  guard let image = result else { throw Unsupported(why: "a graph without a result") }
  image.synchronize(on: commandBuffer)
  try finish(commandBuffer)
  var values: [String: JSON] = [:]
  for name in names(given["read"]) {
    switch name {
    case "sourceOrder": values[name] = .of(order)
    case "sourceStateCount": values[name] = .int(graph.sourceStateHandles?.count ?? -1)
    default: values[name] = try value(name, Encoded(result: image, state: nil))
    }
  }
  return answer(values, nodes)
}

/// A training graph over one batch: its layers, in the CPU's style, are shown gradients when all is computed.
func trainingAnswer(_ given: JSON, _ device: MTLDevice, _ queue: MTLCommandQueue) throws -> JSON {
  let (nodes, layers) = try nodesOf(given, device)
  guard let end = nodes.last?.trainingGraph(withSourceGradient: nil, nodeHandler: nil)?.first,
    let graph = MPSNNGraph(device: device, resultImage: end.resultImage, resultImageIsNeeded: true),
    let form = given["format"]?.int.flatMap({ MPSImageFeatureChannelFormat(rawValue: numericCast($0)) }),
    let size = given["lossImageSize"]?.list?.compactMap(\.int), let source = given["sources"]?.list?.first,
    let commandBuffer = queue.makeCommandBuffer()
  else { throw Unsupported(why: "a training graph that is not made") }
  graph.format = form
  graph.destinationImageAllocator = MPSImage.defaultAllocator()
  let labels: [MPSCNNLossLabels] = try parts(given["labels"] ?? .null).map { values, shape in
    guard let described = lossData(values, shape) else { throw Unsupported(why: "labels") }
    return MPSCNNLossLabels(
      device: device, lossImageSize: MTLSize(width: size[0], height: size[1], depth: size[2]),
      labelsDescriptor: described, weightsDescriptor: nil)
  }
  let images = try batch(source, device)
  guard let result = graph.encodeBatch(to: commandBuffer, sourceImages: [images], sourceStates: [labels]) else {
    throw Unsupported(why: "a graph without a result")
  }
  for each in result + labels.map({ $0.lossImage() }) { each.synchronize(on: commandBuffer) }
  try finish(commandBuffer)
  var values: [String: JSON] = [:]
  for name in names(given["read"]) {
    switch name {
    case "result": values[name] = try pixels(of: result)
    case "loss": values[name] = try pixels(of: labels.map { $0.lossImage() })
    case "gradientForWeights": values[name] = .list(try layers.map { try floats($0.shown?.gradientForWeights) })
    case "gradientForBiases": values[name] = .list(try layers.map { try floats($0.shown?.gradientForBiases) })
    default: throw Unsupported(why: "to read \(name) of a training graph")
    }
  }
  return answer(values, nodes)
}

// --- the process of one case ------------------------------------------------------------------------------------------

func devices() -> [MTLDevice] {
  #if os(macOS)
    return MTLCopyAllDevices()
  #else
    return MTLCreateSystemDefaultDevice().map { [$0] } ?? []
  #endif
}

func answerOf(_ given: JSON, _ device: MTLDevice) -> JSON {
  guard let queue = device.makeCommandQueue() else { return .object(["unsupported": .text("no queue")]) }
  do {
    switch given["kind"]?.text {
    case "kernel": return try kernelAnswer(given, device, queue)
    case "graph": return try graphAnswer(given, device, queue)
    case "training": return try trainingAnswer(given, device, queue)
    case "object": return try objectAnswer(given, device)
    case "matrices": return try matricesAnswer(given, device, queue)
    case "random": return try randomAnswer(given, device, queue)
    case "spacing": return try spacingAnswer(given)
    case "filter": return try filterAnswer(given, device, queue)
    default: throw Unsupported(why: "the kind \(given["kind"]?.text ?? "none")")
    }
  } catch let error as Unsupported {
    return .object(["unsupported": .text(error.why)])
  } catch {
    return .object(["refused": .text("\(error)")])
  }
}

/// A case whose first source's first number is larger by 1.
func changed(_ given: JSON) -> JSON {
  guard case .object(var all) = given, var sources = all["sources"]?.list, case .object(var first) = sources[0],
    var numbers = first["numbers"]?.list
  else { return given }
  numbers[0] = .double((numbers[0].number ?? 0) + 1)
  first["numbers"] = .list(numbers)
  sources[0] = .object(first)
  all["sources"] = .list(sources)
  return .object(all)
}

/// Answers the case of a file into another one; faults are planted.
func child(_ arguments: [String]) throws {
  let (file, target, index, fault) = (arguments[0], arguments[1], Int(arguments[2]) ?? 0, arguments[3])
  dup2(open(target + ".stderr", O_WRONLY | O_CREAT | O_TRUNC, 0o644), 2)
  if fault == "abort" { abort() }
  if fault == "hang" { sleep(3600) }
  if fault == "silence" { exit(0) }
  let given = try read(file)
  try write(answerOf(fault == "another number" ? changed(given) : given, devices()[index]), target)
}

// --- all of them ------------------------------------------------------------------------------------------------------

/// Copies of some words, and null behind them, as C takes them.
func pointers(_ words: [String]) -> [UnsafeMutablePointer<CChar>?] {
  var found: [UnsafeMutablePointer<CChar>?] = []
  for word in words { found.append(strdup(word)) }
  return found + [nil]
}

func environment() -> [String] { ProcessInfo.processInfo.environment.map { "\($0.key)=\($0.value)" } }

struct Recorder {
  let program: String, folder: String, index: Int

  /// The answer to a case, or how its process ended.
  func ask(_ given: JSON, fault: String = "none", limit: Double = 60) throws -> JSON {
    let (file, target) = (folder + "/case.json", folder + "/answer.json")
    try? FileManager.default.removeItem(atPath: target)
    try write(given, file)
    var process: pid_t = 0
    let words = pointers([program, "--child", file, target, String(index), fault]), around = pointers(environment())
    defer { (words + around).forEach { free($0) } }
    guard posix_spawn(&process, program, nil, nil, words, around) == 0 else {
      throw Failure("cannot start \(program)")
    }
    guard let status = wait(process, limit) else { return .object(["timedOut": .double(limit)]) }
    if status & 0x7f != 0 {
      let said = (try? String(contentsOfFile: target + ".stderr", encoding: .utf8)) ?? ""
      let last = said.split(separator: "\n").last.map(String.init) ?? ""
      return .object(["aborted": .int(Int(status & 0x7f)), "stderr": .text(last)])
    }
    return (try? read(target)) ?? .object(["unsupported": .text("no answer")])
  }

  private func wait(_ process: pid_t, _ limit: Double) -> Int32? {
    let end = Date().addingTimeInterval(limit)
    var status: Int32 = 0
    while waitpid(process, &status, WNOHANG) == 0 {
      if Date() > end {
        kill(process, SIGKILL)
        waitpid(process, &status, 0)
        return nil
      }
      usleep(2000)
    }
    return status
  }

  /// The planted faults, each of which was seen; a failure if one was not, or a control is wrong.
  func planted(_ cases: [String: JSON], _ controls: [JSON]) throws -> JSON {
    var found: [String: JSON] = [:]
    for control in controls {
      let name = control["case"]?.text ?? "", given = cases[name] ?? .null, values = control["values"] ?? .null
      guard agrees(try ask(given), values) else { throw Failure("\(name) has not the answer that is known") }
      guard !agrees(try ask(given, fault: "another number"), values) else {
        throw Failure("\(name) with another number has the same answer")
      }
      found["another number: \(name)"] = .text("seen")
    }
    let given = cases[controls.first?["case"]?.text ?? ""] ?? .null
    guard try ask(given, fault: "abort")["aborted"] == .int(6) else { throw Failure("an abort is not seen") }
    guard try ask(given, fault: "hang", limit: 1)["timedOut"] != nil else { throw Failure("a hang is not seen") }
    guard try ask(given, fault: "silence")["unsupported"] != nil else { throw Failure("silence is not seen") }
    for name in ["abort", "hang", "silence"] { found[name] = .text("seen") }
    return .object(found)
  }

  /// Whether an answer begins with the numbers that are known.
  private func agrees(_ answer: JSON, _ known: JSON) -> Bool {
    known.names.allSatisfy { name, value in
      guard let wanted = value["numbers"]?.list, let got = answer["values"]?[name]?["numbers"]?.list else {
        return false
      }
      return wanted.count <= got.count && zip(wanted, got).allSatisfy { $0.number == $1.number }
    }
  }
}

struct Failure: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

func machine(_ device: MTLDevice) -> [String: JSON] {
  let version = ProcessInfo.processInfo.operatingSystemVersion
  #if os(macOS)
    let name = "macOS"
  #else
    let name = "no Mac"
  #endif
  return [
    "framework": .text("Apple"), "gpu": .text(device.name),
    "system": .text("\(name) \(version.majorVersion).\(version.minorVersion)"),
    "build": .text(ProcessInfo.processInfo.operatingSystemVersionString),
  ]
}

/// The text after an option.
func option(_ name: String, _ otherwise: String) -> String {
  let all = ProcessInfo.processInfo.arguments
  guard let place = all.firstIndex(of: name), place + 1 < all.count else { return otherwise }
  return all[place + 1]
}

func recordAll(_ program: String) throws {
  let source = URL(fileURLWithPath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
  let list = option("--list", source.appendingPathComponent("src/openmps/conformance/cases.json").path)
  let document = try read(list), out = option("--out", "goldens")
  let listed = document["cases"]?.list ?? []
  let cases = Dictionary(uniqueKeysWithValues: listed.map { ($0["name"]?.text ?? "", $0) })
  let folder = NSTemporaryDirectory() + "/openmps-record-\(getpid())"
  try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
  defer { try? FileManager.default.removeItem(atPath: folder) }
  guard !devices().isEmpty else { throw Failure("Metal has no GPU here: some virtual machines have none") }
  for (index, device) in devices().enumerated() {
    let recorder = Recorder(program: program, folder: folder, index: index)
    var written: [String: JSON] = ["format": .int(1), "list": document["digest"] ?? .null]
    written["planted"] = try recorder.planted(cases, document["controls"]?.list ?? [])
    var answers: [String: JSON] = [:], about = machine(device), unsupported = 0
    for (place, given) in listed.enumerated() {
      let answer = try recorder.ask(given)
      answers[given["name"]?.text ?? ""] = answer
      unsupported += answer["unsupported"] == nil ? 0 : 1
      if place % 50 == 49 { print("\(place + 1) of \(listed.count)") }
    }
    about["unsupported"] = .int(unsupported)
    (written["answers"], written["machine"]) = (.object(answers), .object(about))
    let name = "\(about["system"]?.text ?? "")-\(device.name)".replacingOccurrences(of: " ", with: "_")
    try FileManager.default.createDirectory(atPath: "\(out)/\(name)", withIntermediateDirectories: true)
    try write(.object(written), "\(out)/\(name)/recording.json")
    print("\(listed.count) answers in \(out)/\(name)/recording.json, \(unsupported) of cases that this recorder cannot say")
  }
}

/// The program itself: as a script it is compiled first, for every case starts it again.
func program() throws {
  let all = ProcessInfo.processInfo.arguments
  if all.count == 6, all[1] == "--child" { return try child(Array(all[2...])) }
  let own = Bundle.main.executablePath ?? all[0]
  if !own.contains("swift-frontend") { return try recordAll(own) }
  let program = NSTemporaryDirectory() + "/openmps-record"
  var process: pid_t = 0
  let words = pointers(["swiftc", "-O", #filePath, "-o", program]), around = pointers(environment())
  var status: Int32 = 1
  guard posix_spawnp(&process, "swiftc", nil, nil, words, around) == 0, waitpid(process, &status, 0) == process,
    status == 0
  else { throw Failure("swiftc must be there: xcode-select --install") }
  try recordAll(program)
}

do { try program() } catch {
  print("error: \(error)")
  exit(1)
}
