job "web" {
  type = "batch"
  parameterized {
    payload = "maybe"
  }
  group "api" {
    task "server" {
      driver = "exec"
    }
  }
}
