job {
  group "api" {
    task "server" {
      driver = "exec"
    }
  }
}
