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

  // with loaded

  @objc(kernelWeightsDataType)
  public func kernelWeightsDataType() -> MPSDataType {
    return PRECISION
  }
UPDATES
  // with copied
}
