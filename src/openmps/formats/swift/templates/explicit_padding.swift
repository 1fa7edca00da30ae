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
    return "explicit: left \(left), top \(top), right \(right), bottom \(bottom)"
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
    precondition(room >= 0, "no window of \(span) pixels fits into \(source) and their padding")
    guard ceilMode else { return room / stride + 1 }
    let result = (room + stride - 1) / stride + 1
    return (result - 1) * stride >= source + low ? result - 1 : result
  }
}
