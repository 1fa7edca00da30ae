extension NAMEFiles {
  /// The float32 numbers of a file, in memory that the caller owns.
  fileprivate static func numbers(_ file: URL, _ count: Int) throws -> UnsafeMutablePointer<Float> {
    let contents = try contents(file, 4 * count)
    let memory = UnsafeMutablePointer<Float>.allocate(capacity: count)
    contents.getBytes(memory, length: contents.length)
    return memory
  }
}
