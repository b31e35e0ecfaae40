job "web" {
  dynamic "group" {
    labels = ["a"]
    content {
      task "server" {
        driver = "exec"
      }
    }
  }
}
