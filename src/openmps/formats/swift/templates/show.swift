extension NAMEHandle {
  /// Hand an image out of every encode, under a label and in memory that the CPU can read.
  fileprivate static func show(_ image: MPSNNImageNode, as label: String) {
    image.handle = NAMEHandle(label)
    image.exportFromGraph = true
    image.synchronizeResource = true
    image.imageAllocator = MPSImage.defaultAllocator()
  }
}
