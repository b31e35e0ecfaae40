job "web" {
  group "api" {
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
      logs {
        max_files     = 100
        max_file_size = 100
      }
    }
  }
}
