/// The optimizer of one layer, with its numbers for weights or gamma, then for biases or beta.
@available(AVAILABLE)
final class NAMERule {
MEMBERS

  init(device: MTLDevice, counts: [Int]) throws {
MADE
  }
STEP}
