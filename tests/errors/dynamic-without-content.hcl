job "web" {
  dynamic "group" {
    for_each = ["a"]
    labels   = [group.value]
  }
}
