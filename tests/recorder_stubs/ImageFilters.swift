// What recorder/record.swift uses of image filters, beside MetalPerformanceShaders.swift.

import Foundation
import Metal

public struct MPSImageHistogramInfo {
  public var numberOfHistogramEntries: Int, histogramForAlpha: ObjCBool
  public var minPixelValue: SIMD4<Float>, maxPixelValue: SIMD4<Float>
  public init(
    numberOfHistogramEntries: Int, histogramForAlpha: ObjCBool, minPixelValue: SIMD4<Float>, maxPixelValue: SIMD4<Float>
  ) {
    (self.numberOfHistogramEntries, self.histogramForAlpha) = (numberOfHistogramEntries, histogramForAlpha)
    (self.minPixelValue, self.maxPixelValue) = (minPixelValue, maxPixelValue)
  }
  var entry: Entry {
    ["histogram": [numberOfHistogramEntries, histogramForAlpha.boolValue, four(minPixelValue), four(maxPixelValue)]]
  }
}

func four(_ given: SIMD4<Float>) -> [Double] { (0..<4).map { Double(given[$0]) } }

/// Listed numbers of a pointer.
func listed(_ start: UnsafePointer<Float>, _ count: Int) -> [Double] { (0..<count).map { Double(start[$0]) } }

public enum MPSAlphaType: UInt { case nonPremultiplied, alphaIsOne, premultiplied }

final class Texture: MTLTexture {
  let image: MPSImage
  init(_ image: MPSImage) { self.image = image }
}

extension MPSImage { public var texture: MTLTexture { Texture(self) } }

func images(_ textures: [MTLTexture?]) -> [Entry] { textures.compactMap { ($0 as? Texture)?.image.entry } }

/// The whole numbers of a buffer.
func whole(in buffer: MTLBuffer) -> Entry {
  let count = buffer.length / 4
  return array([count], (0..<count).map { Float(buffer.contents().load(fromByteOffset: 4 * $0, as: UInt32.self)) })
}

public class ImageFilter: MPSKernel {
  /// The result of sources, written into an image.
  func filter(_ sources: [Entry], _ result: MPSImage, _ more: Entry = [:]) {
    let size = [result.width, result.height, result.featureChannels]
    let given: Entry = ["kind": "filter", "kernel": entry, "sources": sources, "destination": size]
    result.values = MPSImage(asked(given.merging(more) { $1 })["result"]).values
  }
}

public class MPSUnaryImageKernel: ImageFilter {
  var tables: [Entry] = []
  public var clipRect: MTLRegion {
    get { fatalError() }
    set { properties["clipRect"] = region(newValue) }
  }
  public var offset: MPSOffset {
    get { fatalError() }
    set { properties["offset"] = ["offset": [newValue.x, newValue.y, newValue.z]] as Entry }
  }
  public func encode(commandBuffer: MTLCommandBuffer, sourceImage: MPSImage, destinationImage: MPSImage) {
    filter([sourceImage.entry], destinationImage, tables.isEmpty ? [:] : ["histograms": tables])
  }
}

public class MPSBinaryImageKernel: ImageFilter {
  public func encode(
    commandBuffer: MTLCommandBuffer, primaryImage: MPSImage, secondaryImage: MPSImage, destinationImage: MPSImage
  ) { filter([primaryImage.entry, secondaryImage.entry], destinationImage) }
}

public class MPSImageReduceUnary: MPSUnaryImageKernel {
  public var clipRectSource: MTLRegion {
    get { fatalError() }
    set { properties["clipRectSource"] = region(newValue) }
  }
}

public class GuidedFilter: ImageFilter {
  public func encodeRegression(
    to commandBuffer: MTLCommandBuffer, sourceTexture: MTLTexture, guidanceTexture: MTLTexture,
    weightsTexture: MTLTexture?, destinationCoefficientsTexture: MTLTexture
  ) {
    let result = (destinationCoefficientsTexture as! Texture).image
    filter(images([sourceTexture, guidanceTexture, weightsTexture]), result)
  }
}

public class CountingFilter: MPSKernel {
  public var minPixelThresholdValue: SIMD4<Float> {
    get { fatalError() }
    set { properties["minPixelThresholdValue"] = four(newValue) }
  }
  public func encode(
    to commandBuffer: MTLCommandBuffer, sourceTexture: MTLTexture, histogram: MTLBuffer, histogramOffset: Int
  ) {
    let given: Entry = ["kind": "filter", "kernel": entry, "sources": images([sourceTexture])]
    let counts = asked(given.merging(["counts": [1, histogram.length / 4]]) { $1 })["counts"] as! Entry
    for (place, value) in (counts["numbers"] as! [Any]).enumerated() {
      histogram.contents().storeBytes(of: UInt32(number(value)), toByteOffset: 4 * place, as: UInt32.self)
    }
  }
}

public class EqualizingFilter: MPSUnaryImageKernel {
  public func encodeTransform(
    to commandBuffer: MTLCommandBuffer, sourceTexture: MTLTexture, histogram: MTLBuffer, histogramOffset: Int
  ) { tables = [whole(in: histogram)] }
}

public class SpecifyingFilter: MPSUnaryImageKernel {
  public func encodeTransform(
    to commandBuffer: MTLCommandBuffer, sourceTexture: MTLTexture, sourceHistogram: MTLBuffer,
    sourceHistogramOffset: Int, desiredHistogram: MTLBuffer, desiredHistogramOffset: Int
  ) { tables = [whole(in: sourceHistogram), whole(in: desiredHistogram)] }
}
