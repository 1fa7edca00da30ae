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

  // with mapped_weights

  // with mapped_biases

  // with loaded

  @objc(kernelWeightsDataType)
  public func kernelWeightsDataType() -> MPSDataType {
    return precision
  }

  // with copied
}
