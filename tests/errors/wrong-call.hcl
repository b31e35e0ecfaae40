job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      user = upper("a", "b")
    }
  }
}
