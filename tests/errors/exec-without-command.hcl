job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        args = ["x"]
      }
    }
  }
}
