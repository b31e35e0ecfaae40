job "web" {
  group "app" {
    task "server" {
      driver = "exec"
      restart {
        mode = "delayed"
      }
    }
  }
}
