// What recorder/record.swift uses of Metal, for a machine that has none: one device, whose memory is the host's.

import Foundation

public protocol MTLDevice: AnyObject {
  var name: String { get }
  func makeCommandQueue() -> MTLCommandQueue?
}

public protocol MTLCommandQueue: AnyObject {
  func makeCommandBuffer() -> MTLCommandBuffer?
}

public protocol MTLCommandBuffer: AnyObject {
  var device: MTLDevice { get }
  var error: Error? { get }
  func addCompletedHandler(_ block: @escaping (MTLCommandBuffer) -> Void)
  func commit()
  func waitUntilCompleted()
}

public protocol MTLBuffer: AnyObject {
  var length: Int { get }
  func contents() -> UnsafeMutableRawPointer
}

public protocol MTLTexture: AnyObject {}

public struct MTLOrigin {
  public var x: Int, y: Int, z: Int
  public init(x: Int, y: Int, z: Int) { (self.x, self.y, self.z) = (x, y, z) }
}

public struct MTLSize {
  public var width: Int, height: Int, depth: Int
  public init(width: Int, height: Int, depth: Int) { (self.width, self.height, self.depth) = (width, height, depth) }
}

public struct MTLRegion {
  public var origin: MTLOrigin, size: MTLSize
  public init(origin: MTLOrigin, size: MTLSize) { (self.origin, self.size) = (origin, size) }
}

public struct MTLPixelFormat { public let rawValue: UInt; public init(rawValue: UInt) { self.rawValue = rawValue } }

public struct MTLResourceOptions { public static var storageModeShared: MTLResourceOptions { .init() } }

extension MTLDevice {
  public func makeBuffer(length: Int, options: MTLResourceOptions) -> MTLBuffer? {
    Buffer(Array(repeating: 0, count: length / 4))
  }
}

public func MTLCreateSystemDefaultDevice() -> MTLDevice? { Device() }

final class Device: MTLDevice, MTLCommandQueue {
  let name = "stub"
  func makeCommandQueue() -> MTLCommandQueue? { self }
  func makeCommandBuffer() -> MTLCommandBuffer? { CommandBuffer(self) }
}

final class CommandBuffer: MTLCommandBuffer {
  let device: MTLDevice
  let error: Error? = nil
  private var isCommitted = false, handlers: [(MTLCommandBuffer) -> Void] = []
  init(_ device: MTLDevice) { self.device = device }
  func commit() { precondition(!isCommitted); isCommitted = true }
  func addCompletedHandler(_ block: @escaping (MTLCommandBuffer) -> Void) { handlers.append(block) }
  func waitUntilCompleted() {
    precondition(isCommitted)
    handlers.forEach { $0(self) }
    handlers = []
  }
}

public final class Buffer: MTLBuffer {
  public let length: Int
  private let memory: UnsafeMutableRawPointer
  public init(_ values: [Float]) {
    length = 4 * values.count
    memory = .allocate(byteCount: max(length, 4), alignment: 16)
    values.withUnsafeBytes { memory.copyMemory(from: $0.baseAddress!, byteCount: length) }
  }
  public func contents() -> UnsafeMutableRawPointer { memory }
}
