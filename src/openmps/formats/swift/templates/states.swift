private enum NAMEStates {
  /// A state that a filter leaves, of the class that its reader takes.
  static func state<State: MPSNNStateNode>(
    _ state: MPSNNStateNode?, of filter: MPSNNFilterNode
  ) throws -> State {
    guard let found = state as? State else {
      throw NAMEError(description: "\(type(of: filter)) leaves no \(State.self)")
    }
    return found
  }
}
