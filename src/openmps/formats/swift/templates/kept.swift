extension NAMEFiles {
  /// The float32 numbers of a file, in memory that stays: the framework does not say that it copies
  /// them.
  fileprivate static func kept(_ file: URL, _ count: Int) throws -> UnsafePointer<Float> {
    return UnsafePointer(try numbers(file, count))
  }
}
