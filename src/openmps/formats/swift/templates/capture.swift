//  NAMECapture.swift
//
//  Every image of an encode of NAME, as a folder that `openmps compare` reads:
//
//      let model = try NAME(
//        device: device, folder: folder, ASKEDcapturing: true)
//      let capture = try NAMECapture(of: model, [SOURCES], on: queue)
//      try capture.write(to: target, about: "the device and its system")

import Foundation
import Metal
import MetalPerformanceShaders

/// The images of one encode: what the graph was given, and what each of its filters made.
@available(AVAILABLE)
public struct NAMECapture {
  /// The numbers of an image as they are stored: images, rows, columns, feature channels.
  public struct Image {
    public let label: String
    public let count: Int
    public let height: Int
    public let width: Int
    public let channels: Int
    /// unorm8, unorm16, float16 or float32.
    public let format: String
    public let bytes: Data
  }

  public let images: [Image]

  /// Encode a model that was made with `capturing: true`, wait for it, and read all images.
  public init(of model: NAME, _ sourceImages: [MPSImage], on queue: MTLCommandQueue) throws {
    guard let commandBuffer = queue.makeCommandBuffer() else {
      throw NAMEError(description: "the queue makes no command buffer")
    }
    let made = NSMutableArray()
    for image in sourceImages {
      image.synchronize(on: commandBuffer)
    }
    _ = model.graph.encode(
      to: commandBuffer, sourceImages: sourceImages, sourceStates: nil, intermediateImages: made,
      destinationStates: nil)
    commandBuffer.commit()
    commandBuffer.waitUntilCompleted()
    if let error = commandBuffer.error {
      throw error
    }
    let sources = model.graph.sourceImageHandles
    let results = model.graph.intermediateImageHandles ?? []
    let shown = made.compactMap { $0 as? MPSImage }
    guard sources.count == sourceImages.count, !results.isEmpty, results.count == shown.count else {
      throw NAMEError(
        description: "\(results.count) images are shown, and \(shown.count) were made of "
          + "\(sourceImages.count): make NAME with capturing: true")
    }
    images = try zip(sources + results, sourceImages + shown).enumerated().map { place, pair in
      try NAMECapture.read(pair.1, pair.0.label() ?? "source \(place)")
    }
  }

  /// Write `capture.json` and `images.dat` into a folder, which is made.
  public func write(to folder: URL, about: String) throws {
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    let rows = images.map { image -> [String: Any] in
      [
        "label": image.label, "count": image.count, "height": image.height, "width": image.width,
        "channels": image.channels, "format": image.format,
      ]
    }
    let index: [String: Any] = [
      "format": "openmps.capture", "version": 1, "about": about, "images": rows,
    ]
    var numbers = Data()
    for image in images {
      numbers.append(image.bytes)
    }
    try numbers.write(to: folder.appendingPathComponent("images.dat"))
    let text = try JSONSerialization.data(withJSONObject: index)
    try text.write(to: folder.appendingPathComponent("capture.json"), options: .atomic)
  }

  private static func read(_ image: MPSImage, _ label: String) throws -> Image {
    let formats: [MPSImageFeatureChannelFormat: (name: String, bytes: Int)] = [
      .unorm8: ("unorm8", 1), .unorm16: ("unorm16", 2), .float16: ("float16", 2),
      .float32: ("float32", 4),
    ]
    guard let format = formats[image.featureChannelFormat] else {
      throw NAMEError(description: "\(label) is stored in a format that has no numbers")
    }
    let length = image.height * image.width * image.featureChannels * format.bytes
    var bytes = Data(count: length * image.numberOfImages)
    bytes.withUnsafeMutableBytes { buffer in
      guard let start = buffer.baseAddress else { return }
      for index in 0..<image.numberOfImages {
        image.readBytes(
          start + index * length, dataLayout: .HeightxWidthxFeatureChannels, imageIndex: index)
      }
    }
    return Image(
      label: label, count: image.numberOfImages, height: image.height, width: image.width,
      channels: image.featureChannels, format: format.name, bytes: bytes)
  }
}
