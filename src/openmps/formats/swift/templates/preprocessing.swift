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
    return "\(order), (pixels - \(mean)) * \(scale)"
  }
}
