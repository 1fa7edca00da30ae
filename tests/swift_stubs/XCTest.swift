// What exported tests use of XCTest; nothing is run.

open class XCTestCase {
  public init() {}
}

public struct XCTSkip: Error {
  public init(_ message: String) {}
}

public func XCTFail(_ message: String) {}
public func XCTAssertEqual<Value: Equatable>(_ first: Value, _ second: Value, _ message: String) {}
public func XCTUnwrap<Value>(_ value: Value?, _ message: String) throws -> Value { value! }
