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

  // with loaded

  @objc(epsilon)
  public func epsilon() -> Float {
    return small
  }
UPDATES
  // with copied
}
