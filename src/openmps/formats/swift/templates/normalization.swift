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

  // with copied
}
