//  NAMETests.swift
//
//  NAME on this device beside what openmps gives for the same images. Add this file to a target of
//  tests, with NAME.swift, NAMECapture.swift and all .dat files; NAME-golden.dat has the images.

import Foundation
import Metal
import MetalPerformanceShaders
import XCTest

@available(AVAILABLE)
final class NAMETests: XCTestCase {
  private struct Source {
    let label: String
    let width: Int
    let height: Int
    let channels: Int
  }

  private struct Result {
    let label: String
    /// Numbers of one image.
    let count: Int
    /// What 50, 90, 99 and 100 percent of the errors stay below, of the largest magnitude: what
    /// rounding explains.
    let limits: [Float]
  }

  private static let images = COUNT
  private static let sources = [SOURCES]
  private static let results = [RESULTS]

  func testResultsAreWithinWhatRoundingExplains() throws {
    guard let device = MTLCreateSystemDefaultDevice(), MPSSupportsMTLDevice(device),
      let queue = device.makeCommandQueue()
    else {
      throw XCTSkip("no device that runs Metal Performance Shaders")
    }
    let bundle = Bundle(for: NAMETests.self)
    let folder = bundle.resourceURL ?? bundle.bundleURL
    let model = try NAME(
      device: device, folder: folder, PREPAREDcapturing: true)
    let golden = try Data(contentsOf: folder.appendingPathComponent("NAME-golden.dat"))
    var place = 0
    let inputs = try NAMETests.sources.map { source in
      try NAMETests.read(golden, &place, source, device)
    }
    let captures = try (0..<NAMETests.images).map { index in
      try NAMECapture(of: model, inputs.map { $0[index] }, on: queue)
    }
    for result in NAMETests.results {
      var found: [Float] = []
      for capture in captures {
        found += try NAMETests.numbers(capture, result)
      }
      let count = NAMETests.images * result.count
      let wanted = NAMETests.floats(golden.subdata(in: place..<(place + 4 * count)))
      place += 4 * count
      let errors = NAMETests.errors(found, wanted)
      let isWithin = zip(errors, result.limits).allSatisfy { $0 <= $1 }
      if !isWithin {
        let target = FileManager.default.temporaryDirectory.appendingPathComponent("NAME-capture")
        try captures[0].write(to: target, about: device.name)
        XCTFail(
          "\(result.label): errors \(errors) of \(result.limits). openmps compare \(target.path) "
            + "says which layer they come from")
      }
    }
  }

  /// The float16 images of one source, an image each.
  private static func read(
    _ golden: Data, _ place: inout Int, _ source: Source, _ device: MTLDevice
  ) throws -> [MPSImage] {
    let length = 2 * source.width * source.height * source.channels
    let descriptor = MPSImageDescriptor(
      channelFormat: .float16, width: source.width, height: source.height,
      featureChannels: source.channels)
    var images: [MPSImage] = []
    for _ in 0..<NAMETests.images {
      let image = MPSImage(device: device, imageDescriptor: descriptor)
      golden.subdata(in: place..<(place + length)).withUnsafeBytes { bytes in
        guard let start = bytes.baseAddress else { return }
        image.writeBytes(start, dataLayout: .HeightxWidthxFeatureChannels, imageIndex: 0)
      }
      place += length
      images.append(image)
    }
    return images
  }

  private static func numbers(_ capture: NAMECapture, _ result: Result) throws -> [Float] {
    let found = capture.images.first { $0.label == result.label }
    let image = try XCTUnwrap(found, "no image is called \(result.label)")
    let numbers = image.format == "float32" ? floats(image.bytes) : halves(image.bytes)
    XCTAssertEqual(numbers.count, result.count, "numbers of \(result.label)")
    return numbers
  }

  private static func floats(_ bytes: Data) -> [Float] {
    var numbers = [Float](repeating: 0, count: bytes.count / 4)
    _ = numbers.withUnsafeMutableBytes { bytes.copyBytes(to: $0) }
    return numbers
  }

  private static func halves(_ bytes: Data) -> [Float] {
    var numbers = [UInt16](repeating: 0, count: bytes.count / 2)
    _ = numbers.withUnsafeMutableBytes { bytes.copyBytes(to: $0) }
    return numbers.map { bits in
      let exponent = Int(bits >> 10) & 31
      let fraction = Float(bits & 1023) / 1024
      let sign: Float = bits >> 15 == 0 ? 1 : -1
      switch exponent {
      case 0: return sign * fraction * 0x1p-14
      case 31: return fraction == 0 ? sign * Float.infinity : Float.nan
      default:
        return sign * Float(sign: .plus, exponent: exponent - 15, significand: 1 + fraction)
      }
    }
  }

  /// What 50, 90, 99 and 100 percent of the errors stay below; infinite where one is no number.
  private static func errors(_ found: [Float], _ wanted: [Float]) -> [Float] {
    let magnitude = (found + wanted).map { abs($0) }.filter { $0.isFinite }.max() ?? 0
    let scale = magnitude > 0 ? magnitude : 1
    let all = zip(found, wanted).map { pair -> Float in
      let error = pair.0 == pair.1 ? 0 : abs(pair.0 - pair.1) / scale
      return error.isFinite ? error : Float.infinity
    }.sorted()
    guard all.count == wanted.count, !all.isEmpty else {
      return [Float](repeating: .infinity, count: 4)
    }
    return [0.5, 0.9, 0.99, 1].map { share in
      all[Int((share * Double(all.count - 1)).rounded(.up))]
    }
  }
}
