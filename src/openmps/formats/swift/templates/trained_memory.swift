@available(AVAILABLE)
extension NAMEFiles {
  /// Memory that the CPU and the device share.
  fileprivate static func buffer(_ device: MTLDevice, _ count: Int) throws -> MTLBuffer {
    guard let made = device.makeBuffer(length: 4 * count, options: .storageModeShared) else {
      throw NAMEError(description: "the device has no memory for \(count) numbers")
    }
    return made
  }

  /// The same, with numbers from an offset of a file on.
  fileprivate static func buffer(
    _ device: MTLDevice, _ contents: NSData, _ offset: Int, _ count: Int
  ) throws -> MTLBuffer {
    let made = try buffer(device, count)
    contents.getBytes(made.contents(), range: NSRange(location: offset, length: 4 * count))
    return made
  }

  /// A vector of zeros for an optimizer.
  fileprivate static func vector(_ device: MTLDevice, _ count: Int) throws -> MPSVector {
    let zeros = try buffer(device, count)
    zeros.contents().initializeMemory(as: Float.self, repeating: 0, count: count)
    return MPSVector(
      buffer: zeros, descriptor: MPSVectorDescriptor(length: count, dataType: .float32))
  }
}
