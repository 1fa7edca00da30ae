// What a graph over the stubs holds, as text that tests read.

import Foundation
import Metal

/// Print one line of JSON for a graph, or for the error that it ends with.
public func report(_ name: String, _ make: (MTLDevice) throws -> MPSNNGraph) {
  var found: [String: Any] = ["name": name]
  do {
    let graph = try make(HostDevice())
    found["nodes"] = graph.nodes.map(facts)
    found["label"] = graph.label ?? NSNull()
    found["needed"] = graph.results.map(\.1)
  } catch {
    found["error"] = "\(error)"
  }
  MPSNNGraph.made = []
  show(found)
}

/// Print one line of JSON.
public func show(_ found: [String: Any]) {
  let data = try? JSONSerialization.data(withJSONObject: found, options: .sortedKeys)
  print(String(decoding: data ?? Data(), as: UTF8.self))
}

private func facts(_ node: MPSNNFilterNode) -> [String: Any] {
  var given: [String: Any] = [:]
  for (label, value) in node.given { given[label] = fact(value) }
  return [
    "class": "\(type(of: node))", "label": node.label ?? NSNull(), "given": given,
    "method": node.paddingPolicy.paddingMethod().rawValue, "policy": node.paddingPolicy.label(),
  ]
}

private func fact(_ value: Any) -> Any {
  switch value {
  case let value as Bool: return value
  case let value as Int: return value
  case let value as Float: return Double(value)
  case let value as Double: return value
  case let value as [MPSNNImageNode]: return value.count
  case let value as MPSCNNConvolutionDataSource: return numbers(value)
  case let value as NormalizationDataSource: return numbers(value)
  default: return NSNull()
  }
}

private func numbers(_ source: MPSCNNConvolutionDataSource) -> [String: Any] {
  defer { source.purge() }
  let size = source.dataType() == .float16 ? 2 : 4
  guard source.load() else { return ["label": "not loaded"] }
  let count = source.descriptor().count(of: source.dataType())
  let biases = source.biasTerms().map { sum(UnsafeRawPointer($0), 4 * source.descriptor().outputs) }
  return [
    "label": source.label() ?? NSNull(), "weights": sum(source.weights(), size * count), "biases": biases ?? NSNull(),
  ]
}

private func numbers(_ source: NormalizationDataSource) -> [String: Any] {
  var rows = [source.gamma(), source.beta()]
  let channels: Int
  switch source {
  case let batch as MPSCNNBatchNormalizationDataSource:
    channels = batch.numberOfFeatureChannels()
    rows += [batch.mean(), batch.variance()]
  case let group as MPSCNNGroupNormalizationDataSource: channels = group.numberOfFeatureChannels
  case let instance as MPSCNNInstanceNormalizationDataSource: channels = instance.numberOfFeatureChannels
  default: channels = 0
  }
  return [
    "label": source.label() ?? NSNull(), "epsilon": Double(source.epsilon()),
    "rows": rows.map { row in row.map { sum(UnsafeRawPointer($0), 4 * channels) } ?? 0 },
  ]
}

/// Adler-32 of bytes.
private func sum(_ bytes: UnsafeRawPointer, _ count: Int) -> Int {
  var (a, b) = (1, 0)
  for each in UnsafeRawBufferPointer(start: bytes, count: count) {
    a = (a + Int(each)) % 65521
    b = (b + a) % 65521
  }
  return b << 16 | a
}

/// The graph of a sharing policy: how it places one kernel over one image.
public func placed(
  _ policy: MPSNNPadding, _ kernel: MPSCNNKernel, _ width: Int, _ height: Int
) -> [String: Any] {
  let made = policy.destinationImageDescriptor(
    forSourceImages: [MPSImage(width: width, height: height)], sourceStates: nil, for: kernel,
    suggestedDescriptor: MPSImageDescriptor())
  var found = ["width": made.width, "height": made.height, "x": kernel.offset.x, "y": kernel.offset.y]
  if let transpose = kernel as? MPSCNNConvolutionTranspose {
    (found["x"], found["y"]) = (transpose.kernelOffsetX, transpose.kernelOffsetY)
  }
  return found
}
