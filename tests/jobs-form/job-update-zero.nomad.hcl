job "job-update-zero" {
  update {
    max_parallel = 0
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
