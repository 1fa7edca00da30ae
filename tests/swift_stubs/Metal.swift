// What exported sources use of Metal, for a machine that has none: memory is the host's.

import Foundation

public struct MTLResourceOptions: OptionSet, Sendable {
  public let rawValue: UInt
  public init(rawValue: UInt) { self.rawValue = rawValue }
  public static let storageModeShared = MTLResourceOptions([])
}

public protocol MTLDevice: AnyObject {
  var name: String { get }
  func makeCommandQueue() -> MTLCommandQueue?
  func makeBuffer(length: Int, options: MTLResourceOptions) -> MTLBuffer?
}

public protocol MTLBuffer: AnyObject {
  var length: Int { get }
  func contents() -> UnsafeMutableRawPointer
}

public protocol MTLCommandQueue: AnyObject {
  func makeCommandBuffer() -> MTLCommandBuffer?
}

public protocol MTLCommandBuffer: AnyObject {
  var device: MTLDevice { get }
  var error: Error? { get }
  func commit()
  func waitUntilCompleted()
}

public func MTLCreateSystemDefaultDevice() -> MTLDevice? { HostDevice() }

public struct MTLOrigin {
  public var x: Int, y: Int, z: Int
  public init(x: Int, y: Int, z: Int) { (self.x, self.y, self.z) = (x, y, z) }
}

public struct MTLSize {
  public var width: Int, height: Int, depth: Int
  public init(width: Int, height: Int, depth: Int) {
    (self.width, self.height, self.depth) = (width, height, depth)
  }
}

public struct MTLRegion {
  public var origin: MTLOrigin, size: MTLSize
  public init(origin: MTLOrigin, size: MTLSize) { (self.origin, self.size) = (origin, size) }
}

// --- what tests use ---

/// Memory of the host that is not zero until somebody writes it.
public final class HostBuffer: MTLBuffer {
  public let length: Int
  private let memory: UnsafeMutableRawPointer

  public init(length: Int) {
    self.length = length
    memory = .allocate(byteCount: max(length, 1), alignment: 16)
    memory.initializeMemory(as: UInt8.self, repeating: 0xff, count: length)
  }

  deinit { memory.deallocate() }

  public func contents() -> UnsafeMutableRawPointer { memory }
}

public final class HostDevice: MTLDevice {
  /// Bytes of the longest buffer that there is memory for.
  public var most = Int.max

  public let name = "host"

  public init() {}

  public func makeCommandQueue() -> MTLCommandQueue? { HostCommandQueue(device: self) }

  public func makeBuffer(length: Int, options: MTLResourceOptions) -> MTLBuffer? {
    length > most ? nil : HostBuffer(length: length)
  }
}

public final class HostCommandQueue: MTLCommandQueue {
  let device: MTLDevice
  init(device: MTLDevice) { self.device = device }
  public func makeCommandBuffer() -> MTLCommandBuffer? { HostCommandBuffer(device: device) }
}

public final class HostCommandBuffer: MTLCommandBuffer {
  public let device: MTLDevice, error: Error? = nil
  public init(device: MTLDevice) { self.device = device }
  public func commit() {}
  public func waitUntilCompleted() {}
}
