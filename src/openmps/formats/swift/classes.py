"""Swift of the classes that stand beside a graph: handles, padding policies, data sources; ``NAME`` is the model's.

Each is a text of its own, so that a source has those that it needs and no others.
"""

from __future__ import annotations

FILES = """
/// What can be wrong with the files of NAME, with the device, or with what an app says.
public struct NAMEError: Error, CustomStringConvertible {
  public let description: String
}

private enum NAMEFiles {
  /// The contents of a file, which must be of a length: mapped into memory where that is safe, so
  /// that pages are read when they are used, and the system can drop them again.
  static func contents(_ file: URL, _ count: Int) throws -> NSData {
    let contents: NSData
    do {
      contents = try NSData(contentsOf: file, options: .mappedIfSafe)
    } catch {
      throw NAMEError(description: "\\(file.path) cannot be read: \\(error.localizedDescription)")
    }
    guard contents.length == count else {
      throw NAMEError(
        description: "\\(file.path) must hold \\(count) bytes, got \\(contents.length)")
    }
    return contents
  }
}
"""

PREPROCESSING = """
/// What is done to pixels from 0 to 255 before NAME sees them: (pixel - mean) * scale, channel by
/// channel.
public struct NAMEPreprocessing: Equatable, Sendable, CustomStringConvertible {
  /// Of the channels: grey, RGB or BGR.
  public let order: String
  /// A number for each channel, in that order.
  public let mean: [Float]
  public let scale: [Float]

  public init(order: String, mean: [Float], scale: [Float]) {
    self.order = order
    self.mean = mean
    self.scale = scale
  }

  public var description: String {
    return "\\(order), (pixels - \\(mean)) * \\(scale)"
  }
}
"""

NUMBERS = """
extension NAMEFiles {
  /// The float32 numbers of a file, in memory that the caller owns.
  fileprivate static func numbers(_ file: URL, _ count: Int) throws -> UnsafeMutablePointer<Float> {
    let contents = try contents(file, 4 * count)
    let memory = UnsafeMutablePointer<Float>.allocate(capacity: count)
    contents.getBytes(memory, length: contents.length)
    return memory
  }
}
"""

KEPT = """
extension NAMEFiles {
  /// The float32 numbers of a file, in memory that stays: the framework does not say that it copies
  /// them.
  fileprivate static func kept(_ file: URL, _ count: Int) throws -> UnsafePointer<Float> {
    return UnsafePointer(try numbers(file, count))
  }
}
"""

STATES = """
private enum NAMEStates {
  /// A state that a filter leaves, of the class that its reader takes.
  static func state<State: MPSNNStateNode>(
    _ state: MPSNNStateNode?, of filter: MPSNNFilterNode
  ) throws -> State {
    guard let found = state as? State else {
      throw NAMEError(description: "\\(type(of: filter)) leaves no \\(State.self)")
    }
    return found
  }
}
"""

HANDLE = """
/// The name of an image or of labels.
@available(AVAILABLE)
public final class NAMEHandle: NSObject, MPSHandle {
  private let name: String?

  public init(_ name: String?) {
    self.name = name
  }

  public static var supportsSecureCoding: Bool { return true }

  public required init?(coder: NSCoder) {
    name = coder.decodeObject(of: NSString.self, forKey: "name") as String?
  }

  public func encode(with coder: NSCoder) {
    coder.encode(name as NSString?, forKey: "name")
  }

  public func label() -> String? {
    return name
  }
}
"""

EXPLICIT_PADDING = """
/// Padding of each side in pixels, of convolution, transposed convolution and pooling:
/// size floor((L + low + high - k) / s) + 1, offset k / 2 - low, where k is the dilated kernel.
@available(AVAILABLE)
public final class NAMEPadding: NSObject, MPSNNPadding {
  private let left: Int
  private let top: Int
  private let right: Int
  private let bottom: Int
  private let ceilMode: Bool
  private let countIncludePad: Bool?
  private let edgeMode: MPSImageEdgeMode?

  init(
    left: Int, top: Int, right: Int, bottom: Int, ceilMode: Bool, countIncludePad: Bool?,
    edgeMode: MPSImageEdgeMode?
  ) {
    self.left = left
    self.top = top
    self.right = right
    self.bottom = bottom
    self.ceilMode = ceilMode
    self.countIncludePad = countIncludePad
    self.edgeMode = edgeMode
  }

  public static var supportsSecureCoding: Bool { return true }

  public required init?(coder: NSCoder) {
    left = coder.decodeInteger(forKey: "left")
    top = coder.decodeInteger(forKey: "top")
    right = coder.decodeInteger(forKey: "right")
    bottom = coder.decodeInteger(forKey: "bottom")
    ceilMode = coder.decodeBool(forKey: "ceilMode")
    countIncludePad =
      coder.containsValue(forKey: "count") ? coder.decodeBool(forKey: "count") : nil
    edgeMode =
      coder.containsValue(forKey: "edge")
      ? MPSImageEdgeMode(rawValue: UInt(coder.decodeInteger(forKey: "edge"))) : nil
  }

  public func encode(with coder: NSCoder) {
    coder.encode(left, forKey: "left")
    coder.encode(top, forKey: "top")
    coder.encode(right, forKey: "right")
    coder.encode(bottom, forKey: "bottom")
    coder.encode(ceilMode, forKey: "ceilMode")
    if let count = countIncludePad { coder.encode(count, forKey: "count") }
    if let edge = edgeMode { coder.encode(Int(edge.rawValue), forKey: "edge") }
  }

  public func paddingMethod() -> MPSNNPaddingMethod {
    return [.custom, .sizeSame]
  }

  public func label() -> String {
    return "explicit: left \\(left), top \\(top), right \\(right), bottom \\(bottom)"
  }

  public func inverse() -> Self? {
    return self
  }

  public func destinationImageDescriptor(
    forSourceImages sourceImages: [MPSImage],
    sourceStates: [MPSState]?,
    for kernel: MPSKernel,
    suggestedDescriptor descriptor: MPSImageDescriptor
  ) -> MPSImageDescriptor {
    // A gradient's size and offsets follow from the forward pass.
    guard let kernel = kernel as? MPSCNNKernel, let source = sourceImages.first else {
      return descriptor
    }
    if let edgeMode = edgeMode { kernel.edgeMode = edgeMode }
    let spanX = (kernel.kernelWidth - 1) * kernel.dilationRateX + 1
    let spanY = (kernel.kernelHeight - 1) * kernel.dilationRateY + 1
    if let transpose = kernel as? MPSCNNConvolutionTranspose {
      descriptor.width = (source.width - 1) * kernel.strideInPixelsX + spanX - left - right
      descriptor.height = (source.height - 1) * kernel.strideInPixelsY + spanY - top - bottom
      kernel.offset = MPSOffset(x: 0, y: 0, z: kernel.offset.z)
      transpose.kernelOffsetX = spanX / 2 - (spanX - 1 - left)
      transpose.kernelOffsetY = spanY / 2 - (spanY - 1 - top)
      return descriptor
    }
    descriptor.width = size(source.width, spanX, kernel.strideInPixelsX, left, right)
    descriptor.height = size(source.height, spanY, kernel.strideInPixelsY, top, bottom)
    kernel.offset = MPSOffset(x: spanX / 2 - left, y: spanY / 2 - top, z: kernel.offset.z)
    if let count = countIncludePad, let average = kernel as? MPSCNNPoolingAverage {
      average.zeroPadSizeX = count ? max(left, right, 0) : 0
      average.zeroPadSizeY = count ? max(top, bottom, 0) : 0
    }
    return descriptor
  }

  private func size(_ source: Int, _ span: Int, _ stride: Int, _ low: Int, _ high: Int) -> Int {
    let room = source + low + high - span
    // The framework calls this, and takes no error: there is no size to go on with.
    precondition(room >= 0, "no window of \\(span) pixels fits into \\(source) and their padding")
    guard ceilMode else { return room / stride + 1 }
    let result = (room + stride - 1) / stride + 1
    return (result - 1) * stride >= source + low ? result - 1 : result
  }
}
"""

CONVOLUTION = """
/// Weights of a convolution in a file: OHWI numbers, from the next multiple of 4 bytes on float32
/// biases if there are some. Pages of the file come into memory when the framework reads them.
@available(AVAILABLE)
public final class NAMEWeights: NSObject, MPSCNNConvolutionDataSource {
  private let name: String?
  private let contents: NSData
  private let type: MPSDataType
  private let precision: MPSDataType
  private let biasOffset: Int
  private let biasCount: Int
  private let shape: MPSCNNConvolutionDescriptor

  init(
    label: String?, file: URL, dataType: MPSDataType, precision: MPSDataType, biasOffset: Int,
    biasCount: Int, descriptor: MPSCNNConvolutionDescriptor
  ) throws {
    name = label
    contents = try NAMEFiles.contents(file, biasOffset + 4 * biasCount)
    type = dataType
    self.precision = precision
    self.biasOffset = biasOffset
    self.biasCount = biasCount
    shape = descriptor
    super.init()
  }

  public func dataType() -> MPSDataType {
    return type
  }

  public func descriptor() -> MPSCNNConvolutionDescriptor {
    return shape
  }

  public func weights() -> UnsafeMutableRawPointer {
    return UnsafeMutableRawPointer(mutating: contents.bytes)  // which the framework only reads
  }

  public func biasTerms() -> UnsafeMutablePointer<Float>? {
    guard biasCount > 0 else { return nil }
    return (weights() + biasOffset).bindMemory(to: Float.self, capacity: biasCount)
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
    return precision
  }

  public func copy(with zone: NSZone? = nil) -> Any {
    return self
  }

  @objc(copyWithZone:device:)
  public func copy(with zone: NSZone?, device: MTLDevice?) -> Self {
    return self
  }
}
"""

_NORMALIZATION = """
/// Parameters of WHAT normalization out of a file: float32 rows of ROWS,
/// one number a channel each.
@available(AVAILABLE)
public final class CLASS: NSObject, PROTOCOL {
  private let name: String?
  private let small: Float
  private let channels: Int
  private let rows: UnsafeMutablePointer<Float>
STORED

  init(label: String?, file: URL, channels: Int, PARAMETERepsilon: Float) throws {
    name = label
    small = epsilon
    self.channels = channels
SET    rows = try NAMEFiles.numbers(file, ROW_COUNT * channels)
    super.init()
  }

  public required init?(coder: NSCoder) {
    return nil  // made with a file
  }

  deinit {
    rows.deallocate()
  }
COUNT
  public func gamma() -> UnsafeMutablePointer<Float>? {
    return rows
  }

  public func beta() -> UnsafeMutablePointer<Float>? {
    return rows + channels
  }
FURTHER
  public func label() -> String? {
    return name
  }

  @objc(epsilon)
  public func epsilon() -> Float {
    return small
  }

  public func copy(with zone: NSZone? = nil) -> Any {
    return self
  }

  @objc(copyWithZone:device:)
  public func copy(with zone: NSZone?, device: MTLDevice?) -> Self {
    return self
  }
}
"""

_MEAN_AND_VARIANCE = """
  public func mean() -> UnsafeMutablePointer<Float>? {
    return rows + 2 * channels
  }

  public func variance() -> UnsafeMutablePointer<Float>? {
    return rows + 3 * channels
  }

  public func load() -> Bool {
    return true
  }

  public func purge() {
  }
"""
_COUNT_METHOD = """
  public func numberOfFeatureChannels() -> Int {
    return channels
  }
"""
_COUNT_PROPERTY = """
  public var numberOfFeatureChannels: Int { return channels }
"""


def _normalization(what: str, kind: str, rows: str, **parts: str) -> str:
    text = _NORMALIZATION.replace("WHAT", what).replace("CLASS", f"NAME{kind}")
    text = text.replace("PROTOCOL", f"MPSCNN{kind}DataSource")
    text = text.replace("ROW_COUNT", str(len(rows.split(",")))).replace("ROWS", rows)
    for part in ("STORED\n", "PARAMETER", "SET", "COUNT", "FURTHER"):
        text = text.replace(part, parts.get(part.strip(), ""))
    return text


BATCH_NORMALIZATION = _normalization(
    "batch", "BatchNormalization", "gamma, beta, mean, variance", COUNT=_COUNT_METHOD, FURTHER=_MEAN_AND_VARIANCE
)
INSTANCE_NORMALIZATION = _normalization("instance", "InstanceNormalization", "gamma, beta", COUNT=_COUNT_PROPERTY)
GROUP_NORMALIZATION = _normalization(
    "group",
    "GroupNormalization",
    "gamma, beta",
    COUNT=_COUNT_PROPERTY,
    STORED="  public var numberOfGroups: Int\n",
    PARAMETER="groups: Int, ",
    SET="    numberOfGroups = groups\n",
)
