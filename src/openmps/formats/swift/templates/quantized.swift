/// Weights of 8 bits in a file: OHWI bytes; from the next multiple of 8 bytes on WHAT; then
/// float32 biases if there are some. The framework multiplies with them in float16.
@available(AVAILABLE)
public final class NAMEKINDWeights: NSObject, MPSCNNConvolutionDataSource {
  private let name: String?
  private let contents: NSData
  private let numberOffset: Int
  private let biasOffset: Int
  private let biasCount: Int
  private let shape: MPSCNNConvolutionDescriptor

  init(
    label: String?, file: URL, numberOffset: Int, biasOffset: Int, biasCount: Int,
    descriptor: MPSCNNConvolutionDescriptor
  ) throws {
    name = label
    contents = try NAMEFiles.contents(file, biasOffset + 4 * biasCount)
    self.numberOffset = numberOffset
    self.biasOffset = biasOffset
    self.biasCount = biasCount
    shape = descriptor
    super.init()
  }

  public func dataType() -> MPSDataType {
    return .uInt8
  }

  // with mapped_weights

  @objc(METHOD)
  public func METHOD() -> UnsafeMutablePointer<ELEMENT> {
    return (weights() + numberOffset).bindMemory(
      to: ELEMENT.self, capacity: (biasOffset - numberOffset) / MemoryLayout<ELEMENT>.stride)
  }

  @objc(weightsQuantizationType)
  public func weightsQuantizationType() -> MPSCNNWeightsQuantizationType {
    return MPSCNNWeightsQuantizationType(rawValue: VALUE)!  // headers give all cases one name in Swift
  }

  // with mapped_biases

  // with loaded

  @objc(kernelWeightsDataType)
  public func kernelWeightsDataType() -> MPSDataType {
    return .float16
  }

  // with copied
}
