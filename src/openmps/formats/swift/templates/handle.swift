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
