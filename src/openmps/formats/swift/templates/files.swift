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
      throw NAMEError(description: "\(file.path) cannot be read: \(error.localizedDescription)")
    }
    guard contents.length == count else {
      throw NAMEError(
        description: "\(file.path) must hold \(count) bytes, got \(contents.length)")
    }
    return contents
  }
}
