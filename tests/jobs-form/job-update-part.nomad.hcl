job "job-update-part" {
  update {
    max_parallel = 2
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
