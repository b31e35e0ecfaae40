job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      env {
        X = join(",", [for i in 3 : i])
      }
    }
  }
}
