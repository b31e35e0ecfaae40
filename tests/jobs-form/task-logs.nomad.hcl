job "task-logs" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      logs {
        max_files = 3
        max_file_size = 4
        disabled = true
      }
    }
  }
}
